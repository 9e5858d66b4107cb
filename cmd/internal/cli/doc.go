// Package cli has the commands of the programs tidegate and tidegate-foreign. It imports neither
// the broker nor a server, which command serve has (cmd/tidegate/internal/serve).
//
// # Files
//
// An invocation passes these files in turn:
//
//   - app.go: App and Call: the streams, flags and connection that all commands share
//   - execute.go: runs the tree of commands; exit codes, and the texts of errors
//   - resolve.go, contexts.go: find the server: flags, then environment, then the context
//   - foreign.go: the kinds of servers that only tidegate-foreign reaches
//   - server.go: opens the connection, and bounds its calls
//   - result.go, terminal.go: print results; screens, keys, outputs that cannot control a terminal
//   - watch.go, waiting.go: repeat a result; report why there is no result yet
//   - job.go, template.go: the journal of a job that can be continued; texts with verbs
//   - program.go, program_unix.go, program_other.go: the programs of users, which the shell runs
//
// The commands:
//
//   - send.go, peek.go: send, recall; peek, find, trace
//   - receive.go: receive, with acknowledge.go, work.go (--exec) and lines.go (--exec-lines)
//   - deadletters.go, redrive.go, parked.go: dead letters and parked message groups
//   - topic.go, group.go: topics and groups, with settings.go; retry.go: retry preview, rewind
//   - lite.go: topic lite, topic delete-lite, and receives from lite topics
//   - limits.go, apply.go, api.go: limits and addresses; apply and export; requests, audit
//   - status.go, clients.go, check.go, top.go: the state of a broker; contexts.go: context
//   - move.go: move, with carry.go (the run) and carryjournal.go; bench.go: over package bench
//   - doctor.go, help.go, completion.go: doctor; help topics, version; completion
//
// views.go, groupview.go and topscreen.go turn the state of a broker into rows, screens and
// sentences, without I/O and without a clock.
package cli
