// A server that returns what it gets, and a client: gRPC without a schema.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kCalls = 100, kAtOnce = 50;
constexpr size_t kLongest = 300000;

class Echo : public grpc::ServerGenericBidiReactor {
  public:
    Echo() { StartRead(&message_); }
    void OnReadDone(bool ok) override {
        if (!ok) Finish(grpc::Status::OK);
        else StartWrite(&message_);
    }
    void OnWriteDone(bool) override { Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }

  private:
    grpc::ByteBuffer message_;
};

class Service : public grpc::CallbackGenericService {
    grpc::ServerGenericBidiReactor *CreateReactor(grpc::GenericCallbackServerContext *) override { return new Echo; }
};

struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    grpc::Status status;
    std::string sent;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

std::string text(const grpc::ByteBuffer &buffer) {
    std::vector<grpc::Slice> slices;
    std::string all;
    if (!buffer.Dump(&slices).ok()) return "damaged";
    for (const grpc::Slice &slice : slices) all.append(reinterpret_cast<const char *>(slice.begin()), slice.size());
    return all;
}

int serve() {
    Service service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("0.0.0.0:8094", grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&service);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server) return 1;
    server->Wait();
    return 0;
}

int ask(const std::string &host) {
    grpc::GenericStub stub(grpc::CreateChannel(host + ":8094", grpc::InsecureChannelCredentials()));
    grpc::CompletionQueue queue;
    int begun = 0, ended = 0;
    size_t bytes = 0;
    auto begin = [&] {
        auto *call = new Call;
        call->sent = std::string(1 + begun * 7919 % kLongest, static_cast<char>('a' + begun % 26));
        grpc::Slice slice(call->sent);
        call->reader = stub.PrepareUnaryCall(&call->context, "/test.Echo/Echo", grpc::ByteBuffer(&slice, 1), &queue);
        call->reader->StartCall();
        call->reader->Finish(&call->answer, &call->status, call);
        begun++;
    };
    while (begun < kAtOnce) begin();
    void *tag;
    bool ok;
    while (ended < kCalls && queue.Next(&tag, &ok)) {
        std::unique_ptr<Call> call(static_cast<Call *>(tag));
        if (!call->status.ok() || text(call->answer) != call->sent) {
            std::printf("failed: %s\n", call->status.error_message().c_str());
            return 1;
        }
        bytes += call->sent.size();
        ended++;
        if (begun < kCalls) begin();
    }
    std::printf("%d calls, %d at once, %zu bytes came back\n", ended, kAtOnce, bytes);
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    return argc == 3 && !std::strcmp(argv[1], "ask") ? ask(argv[2]) : serve();
}
