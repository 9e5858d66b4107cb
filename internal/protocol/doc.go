// Package protocol has the names and numbers of RocketMQ's protocol and of the systems that the
// broker follows (TDMQ for Pulsar, Apache ActiveMQ Artemis) that only this module reads and writes.
// Programs get the values from methods, such as tidegate.Message.DeadLetter. It imports nothing.
package protocol
