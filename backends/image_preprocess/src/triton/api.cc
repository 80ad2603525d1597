// Triton's entry points. They only forward: the work is in the classes, exceptions end in the firewall.
#include "core/gpu.h"
#include "triton/abi.h"
#include "triton/firewall.h"
#include "triton/instance.h"
#include "triton/model.h"

#define TRITONSTACK_EXPORT extern "C" __attribute__((visibility("default")))

using tritonstack::image::Backend;
using tritonstack::image::check;
using tritonstack::image::guarded;
using tritonstack::image::has_gpu;
using tritonstack::image::Instance;
using tritonstack::image::Model;

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return guarded([&] {
    auto state = std::make_unique<Backend>(backend);
    check(TRITONBACKEND_BackendSetState(backend, state.get()));
    state.release();
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_BackendState(backend, &state));
    delete static_cast<Backend*>(state);
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*,
                                                                         TRITONBACKEND_BackendAttribute* attribute) {
  return guarded([&] {
    if (has_gpu()) {
      check(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attribute, kTritonKindGpu, 2, nullptr, 0));
    }
    check(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attribute, kTritonKindCpu, 2, nullptr, 0));
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    TRITONBACKEND_Backend* backend = nullptr;
    void* backend_state = nullptr;
    check(TRITONBACKEND_ModelBackend(model, &backend));
    check(TRITONBACKEND_BackendState(backend, &backend_state));
    auto state = std::make_unique<Model>(model, *static_cast<Backend*>(backend_state));
    check(TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelState(model, &state));
    delete static_cast<Model*>(state);
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    void* model_state = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    check(TRITONBACKEND_ModelState(model, &model_state));
    auto state = std::make_unique<Instance>(instance, *static_cast<Model*>(model_state));
    check(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
    state.release();
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(instance, &state));
    delete static_cast<Instance*>(state);
  });
}

TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                                          TRITONBACKEND_Request** requests,
                                                                          uint32_t count) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(instance, &state));
    static_cast<Instance*>(state)->execute(requests, count);
  });
}

// Asked by the model-ready endpoint of Triton 25.12 and later.
TRITONSTACK_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(instance, &state));
  });
}
