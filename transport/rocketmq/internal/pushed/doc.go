// Package pushed reads the settings that a server pushes in a Telemetry session, and corrects those
// of servers without tidegate's features. It is pure.
package pushed
