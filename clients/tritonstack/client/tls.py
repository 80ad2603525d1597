"""TLS contexts for the HTTP transports."""

from __future__ import annotations

import ssl

from tritonstack.client.endpoint import TlsOptions
from tritonstack.errors import SetupError


def ssl_context(tls: TlsOptions | None) -> ssl.SSLContext:
    """A verifying client context; SetupError names a certificate file that cannot be used."""
    options = tls or TlsOptions()
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file)
    except OSError as error:  # ssl.SSLError is one
        raise SetupError(
            f"cannot use the TLS files: {error}",
            given=", ".join(str(f) for f in (options.ca_file, options.certificate_file, options.key_file) if f),
            expected="PEM files",
        ) from None
    return context
