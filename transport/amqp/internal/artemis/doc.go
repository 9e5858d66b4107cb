// Package artemis starts a real Apache ActiveMQ Artemis broker, for tests and for the program
// transport/amqp/artemis. The broker runs in a Java process of its own and listens on 127.0.0.1
// only. It ends with the process that started it.
//
// The package needs a JDK of version 17 or later and Maven. Maven downloads the broker once, into
// the user's cache directory.
package artemis
