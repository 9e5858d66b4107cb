// Package cli has the commands of the programs tidegate and tidegate-amqp. It imports neither the
// broker nor a server, which command serve has.
//
// An invocation passes these files in turn:
//
//	app.go        App and Call: the streams, flags and connection that all commands share
//	execute.go    runs the tree of commands; exit codes, and the texts of errors
//	resolve.go    finds the server: flags, then environment, then contexts.go
//	server.go     opens the connection, and bounds its calls
//	result.go     prints a result, a question or the progress; watch.go repeats it
//	waiting.go    tells a user why there is no result yet
//	terminal.go   screens, single keys, and outputs that cannot control a terminal
//	job.go        the journal of a job, and the command that continues it
//	template.go   texts with verbs
//
// The commands:
//
//	send.go receive.go peek.go      messages: send, recall; receive; peek, find, trace
//	acknowledge.go work.go lines.go receive: acknowledgements, --exec, --exec-lines
//	deadletters.go redrive.go parked.go
//	topic.go group.go settings.go limits.go retry.go apply.go api.go
//	status.go clients.go check.go top.go
//	contexts.go doctor.go           context, doctor
//	move.go                         package move carries the messages
//	bench.go                        package bench measures
//	help.go completion.go           help topics, version, completion
//
// views.go, groupview.go and topscreen.go turn the state of a broker into rows, screens and
// sentences, without I/O and without a clock.
package cli
