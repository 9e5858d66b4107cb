// Package amqp is a transport for Apache ActiveMQ Artemis over AMQP 1.0; other AMQP servers are not
// supported. Artemis 2.37 is tested. The package makes one attempt for each call, as package
// transport demands; the producer and the consumer retry. It reconnects automatically. The program
// tidegate-amqp (cmd/tidegate-amqp of the core) sends, receives and finds faults from a shell.
//
//	client, err := amqp.New("amqp://localhost:5672", amqp.Options{})
//	p, err := producer.New(client, producer.Options{})
//
// # Addresses and queues
//
// A topic is an address of the routing type MULTICAST. A consumer group is a queue of that address,
// by its fully qualified name "topic::topic.group" ([Options.Queue]): queue names are unique in a
// server. Artemis creates both on demand if the address settings permit it (auto-create-addresses,
// auto-create-queues). Set auto-delete-queues to false: otherwise Artemis deletes the queue of a
// group without consumers once it is empty, and the group misses the messages that are sent before
// it returns.
//
// # Retries and dead letters
//
// By default a failed message is delivered again after the redelivery-delay of the address
// settings. With [Options.CopyRetries] the transport sends a copy to the queue of the group, which
// Artemis delivers after the delay that the consumer chose, and then acknowledges the message. A
// dead letter is such a copy to the anycast queue "group.DLQ", with its origin and reason. Artemis
// detects the repetition of a copy. [Options.Groups] sets the maximum of attempts and the FIFO
// groups. Package transport/held has the leases, and states the losses of a crash of this process.
//
// # Throttling
//
// A full address, memory or disk throttles sends ([tidegate.ErrThrottled], reply code 530), and the
// server stores nothing. Artemis rejects the message, or grants no credit; the transport reports
// the latter after 1 s. Neither has a time to wait. With the address-full-policy DROP Artemis
// accepts messages and discards them, which no client can detect: do not use it.
//
// # Durability
//
// All messages are durable. With journal-datasync, the default, an accepted message survives a
// crash of the server. Acknowledgements have no response in AMQP: nil means that the
// acknowledgement was written to the connection. A crash of the server can lose acknowledgements
// and deliver those messages again.
package amqp
