// Package runner starts real Apache RocketMQ servers for tests: one name server, and brokers and
// gRPC proxies in Java processes of their own, which it starts, kills and restarts by name. Program
// transport/rocketmq/interop/rocketmq has the same as commands. [Up] starts a set-up, and [Open]
// finds one that another program started.
//
// The package needs a Java of version 8 or later and Maven, on Linux, macOS or another Unix. Maven
// downloads each version of RocketMQ once; the jars are then in the user's cache directory.
//
// The processes outlive the program. Their data, configuration and logs are in a directory of the
// set-up, below the directory for temporary files. All ports are on 127.0.0.1, except for those
// that RocketMQ cannot restrict: the gRPC and remoting ports of a proxy and the replication port of
// a broker. Do not run it on a machine that others can reach.
package runner
