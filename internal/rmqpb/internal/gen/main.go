// Command gen makes the Go code of package rmqpb from its .proto files: with a compiler in Go
// instead of protoc, and the two plugins that go.mod pins as tools. go generate runs it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	importPath  = "tidegate/rmq/v2/" // the prefix of our files' registered names
	goPackage   = "github.com/tidegate/tidegate/internal/rmqpb"
	ourService  = "tidegate.rmq.v2.MessagingService"
	wireService = "apache.rocketmq.v2.MessagingService"
)

var files = []string{"definition.proto", "service.proto"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	src := flag.String("src", ".", "`directory` of the .proto files")
	out := flag.String("out", ".", "`directory` that the Go files go to")
	flag.Parse()
	if err := run(context.Background(), *src, *out); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, src, out string) error {
	req, err := compile(ctx, src)
	if err != nil {
		return err
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		res, err := generate(ctx, plugin, req)
		if err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
		for _, f := range res.GetFile() {
			text := f.GetContent()
			if plugin == "protoc-gen-go-grpc" { // has the name as text; a descriptor must keep ours
				text = strings.ReplaceAll(text, ourService, wireService)
			}
			if err := os.WriteFile(filepath.Join(out, f.GetName()), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// compile parses the files and returns what protoc would pass to a plugin.
func compile(ctx context.Context, src string) (*pluginpb.CodeGeneratorRequest, error) {
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			Accessor: func(path string) (io.ReadCloser, error) {
				return os.Open(filepath.Join(src, strings.TrimPrefix(path, importPath)))
			},
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	req := &pluginpb.CodeGeneratorRequest{Parameter: new("module=" + goPackage)}
	for _, f := range files {
		req.FileToGenerate = append(req.FileToGenerate, importPath+f)
	}
	compiled, err := c.Compile(ctx, req.FileToGenerate...)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) { // a file's imports come before it
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, protoutil.ProtoFromFileDescriptor(fd))
	}
	for _, fd := range compiled {
		add(fd)
	}
	return req, nil
}

func generate(ctx context.Context, plugin string, req *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	res := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(stdout.Bytes(), res); err != nil {
		return nil, err
	}
	if res.Error != nil {
		return nil, errors.New(res.GetError())
	}
	return res, nil
}
