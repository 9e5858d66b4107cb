module github.com/tidegate/tidegate/transport/amqp

go 1.26.0

replace github.com/tidegate/tidegate => ../..
