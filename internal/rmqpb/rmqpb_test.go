package rmqpb

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The committed code is what go generate makes of the .proto files.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./internal/gen", "-out", dir).CombinedOutput(); err != nil {
		t.Fatalf("gen: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	have, err := filepath.Glob("*.pb.go")
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 3 || len(have) != 3 {
		t.Fatalf("%d files generated, %d committed; want 3 each", len(made), len(have))
	}
	for _, name := range have {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go generate makes of the .proto files", name)
		}
	}
}

// On the wire the service has RocketMQ's name, in the registry ours.
func TestServiceName(t *testing.T) {
	const official = "apache.rocketmq.v2.MessagingService"
	if got := MessagingService_ServiceDesc.ServiceName; got != official {
		t.Errorf("service name %q, want %q", got, official)
	}
	if MessagingService_QueryRoute_FullMethodName != "/"+official+"/QueryRoute" {
		t.Errorf("method name %q", MessagingService_QueryRoute_FullMethodName)
	}
	if got := len(MessagingService_ServiceDesc.Methods) + len(MessagingService_ServiceDesc.Streams); got != 17 {
		t.Errorf("%d methods, want 17", got)
	}
	for _, f := range []protoreflect.FileDescriptor{File_tidegate_rmq_v2_definition_proto, File_tidegate_rmq_v2_service_proto} {
		if f.Package() != "tidegate.rmq.v2" {
			t.Errorf("%s is of package %s: it would clash with RocketMQ's own client", f.Path(), f.Package())
		}
	}
}
