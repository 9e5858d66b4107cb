// Package wire converts messages between the SDK's types and RocketMQ's protocol: the encoding of
// sends, and the decoding of deliveries straight from the frames of a receive. It does no
// I/O, and has no state apart from pools of memory.
package wire
