//go:build unix

package javaserver

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the interrupts of a terminal from the process: this program stops it in order.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
