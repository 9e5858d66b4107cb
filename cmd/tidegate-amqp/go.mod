module github.com/tidegate/tidegate/cmd/tidegate-amqp

go 1.26.0

replace (
	github.com/tidegate/tidegate => ../..
	github.com/tidegate/tidegate/transport/amqp => ../../transport/amqp
)

require (
	github.com/spf13/cobra v1.10.2
	github.com/tidegate/tidegate v0.0.0-00010101000000-000000000000
	github.com/tidegate/tidegate/transport/amqp v0.0.0-00010101000000-000000000000
)

require (
	github.com/Azure/go-amqp v1.7.0 // indirect
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/go-json-experiment/json v1.27.2 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
