module github.com/tidegate/tidegate/transport/amqp

go 1.26.0

replace github.com/tidegate/tidegate => ../..

require (
	github.com/Azure/go-amqp v1.7.0
	github.com/tidegate/tidegate v0.0.0-00010101000000-000000000000
)

require golang.org/x/time v0.16.0 // indirect
