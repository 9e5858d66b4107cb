package rmqpb

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidegate/tidegate"
)

// testdata/contract.txt lists every name, number and type of RocketMQ's own
// contract, taken by the function below from its definition of July 2026
// (apache/rocketmq-apis, commit 3e60073).
func TestContract(t *testing.T) {
	text, err := os.ReadFile("testdata/contract.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		want[strings.TrimSpace(line)] = true
	}
	ours := map[string]bool{
		"field ReceiveMessageResponse packed 1000 repeated Message": true,
		"field TelemetryCommand ready 1000 repeated MessageQueue":   true,
	}
	for _, line := range contract(File_tidegate_rmq_v2_definition_proto, File_tidegate_rmq_v2_service_proto) {
		if ours[line] {
			continue
		}
		if !want[line] {
			t.Errorf("not in RocketMQ's contract: %s", line)
		}
		delete(want, line)
	}
	for line := range want {
		t.Errorf("only in RocketMQ's contract: %s", line)
	}
}

func contract(fs ...protoreflect.FileDescriptor) []string {
	var out []string
	pkg := string(fs[0].Package())
	short := func(n protoreflect.FullName) string { return strings.TrimPrefix(string(n), pkg+".") }
	enums := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			for j := range es.Get(i).Values().Len() {
				v := es.Get(i).Values().Get(j)
				out = append(out, fmt.Sprintf("enum %s %s %d", short(es.Get(i).FullName()), v.Name(), v.Number()))
			}
		}
	}
	var messages func(protoreflect.MessageDescriptors)
	messages = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			m := ms.Get(i)
			enums(m.Enums())
			messages(m.Messages())
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				kind := f.Kind().String()
				if f.Message() != nil {
					kind = short(f.Message().FullName())
				} else if f.Enum() != nil {
					kind = short(f.Enum().FullName())
				}
				s := fmt.Sprintf("field %s %s %d %s %s", short(m.FullName()), f.Name(), f.Number(), f.Cardinality(), kind)
				if o := f.ContainingOneof(); o != nil {
					s += " " + string(o.Name())
				}
				out = append(out, s)
			}
		}
	}
	for _, f := range fs {
		enums(f.Enums())
		messages(f.Messages())
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out = append(out, fmt.Sprintf("method %s %s %t %s %t", m.Name(), short(m.Input().FullName()), m.IsStreamingClient(), short(m.Output().FullName()), m.IsStreamingServer()))
			}
		}
	}
	sort.Strings(out)
	return out
}

// Package tidegate names the codes as the contract does, and no others.
func TestNamesOfCodes(t *testing.T) {
	for code := int32(1); code < 100000; code++ {
		want, known := Code_name[code]
		if !known {
			want = strconv.Itoa(int(code))
		}
		if got := tidegate.Code(code).String(); got != want {
			t.Errorf("%d has the name %s, want %s", code, got, want)
		}
	}
}

// The bytes were made by RocketMQ's Go client 5.1.4.
func TestGoldenBytes(t *testing.T) {
	for _, tt := range []struct {
		m           proto.Message
		text, bytes string
	}{
		{
			&SendMessageRequest{},
			`messages{topic{resource_namespace:"ns" name:"t"} user_properties{key:"k" value:"v"} system_properties{tag:"a" keys:"b" keys:"c" message_id:"id" body_digest{type:MD5 checksum:"ab"} body_encoding:GZIP message_type:FIFO born_timestamp{seconds:1 nanos:2} born_host:"h" store_timestamp{seconds:3} store_host:"s" delivery_timestamp{seconds:4} receipt_handle:"r" queue_id:5 queue_offset:6 invisible_duration{seconds:7} delivery_attempt:8 message_group:"g" trace_context:"tc" priority:9 lite_topic:"l"} body:"\x01\x02"}`,
			"0a620a070a026e7312017412060a016b1201761a4b0a01611201621201631a0269642206080212026162280230023a04080110024201684a0208035201735a020804620172680570067a0208078001088a0101679201027463aa01016cb0010922020102",
		},
		{
			&TelemetryCommand{},
			`status{code:OK message:"OK"} settings{client_type:PUSH_CONSUMER access_point{scheme:IPv4 addresses{host:"127.0.0.1" port:8081}} backoff_policy{max_attempts:17 customized_backoff{next{seconds:1} next{nanos:5}}} request_timeout{seconds:3} subscription{group{name:"g"} subscriptions{topic{name:"t"} expression{type:SQL expression:"x"}} fifo:true receive_batch_size:32 long_polling_timeout{seconds:20}} user_agent{language:GOLANG version:"1" platform:"p" hostname:"h"} metric{on:true}}`,
			"0a0808a09c0112024f4b1256080212120801120e0a093132372e302e302e3110913f1a0c08111a080a0208010a021005220208033a0b08041201311a017022016842020801321b0a03120167120c0a0312017412050802120178180120202a020814",
		},
		{
			&ChangeInvisibleDurationRequest{},
			`group{name:"g"} topic{name:"t"} receipt_handle:"r" invisible_duration{seconds:1} message_id:"m" suspend:true`,
			"0a0312016712031201741a0172220208012a016d3801",
		},
	} {
		if err := prototext.Unmarshal([]byte(tt.text), tt.m); err != nil {
			t.Fatal(err)
		}
		got, err := proto.MarshalOptions{Deterministic: true}.Marshal(tt.m)
		if err != nil {
			t.Fatal(err)
		}
		if hex.EncodeToString(got) != tt.bytes {
			t.Errorf("%T:\n got %x\nwant %s", tt.m, got, tt.bytes)
		}
	}
}

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
