//go:build !unix

package javaserver

import "os/exec"

// ownGroup does nothing: an interrupt of the terminal also reaches the server.
func ownGroup(*exec.Cmd) {}
