// Calls operators from C++ through torch's dispatcher, as an engine without Python does. For tests only: the shipped
// library holds no Python symbol, so that one wheel serves every Python.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

namespace {

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;

  Call(const std::string& name, const py::args& args, const py::kwargs& kwargs)
      : op(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "")),
        arguments(torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt)) {}

  torch::jit::Stack operator()() const {
    torch::jit::Stack stack = arguments;
    op.callBoxed(stack);
    return stack;
  }
};

// The operator's results, called once.
py::object call(const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  const Call op(name, args, kwargs);
  torch::jit::Stack results;
  {
    py::gil_scoped_release release;
    results = op();
  }
  return torch::jit::createPyObjectForStack(std::move(results));
}

// Mean seconds of one call on the host, over `count` calls without Python in between.
double seconds_per_call(int64_t count, const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  const Call op(name, args, kwargs);
  py::gil_scoped_release release;
  op();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) op();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
}

// What a C++ caller catches when the call is refused, `count` times in a row; empty if it is not.
std::string refusal(int64_t count, const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  const Call op(name, args, kwargs);
  py::gil_scoped_release release;
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    try {
      op();
      return "";
    } catch (const std::exception& e) {
      text = e.what();
    }
  }
  return text;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("call", &call);
  m.def("seconds_per_call", &seconds_per_call);
  m.def("refusal", &refusal);
}
