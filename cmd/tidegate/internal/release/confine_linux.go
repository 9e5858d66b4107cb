package main

import (
	"os/exec"
	"syscall"
)

// confine runs a command as the image's user with root as its root directory.
func confine(c *exec.Cmd, root string) {
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nonRoot, Gid: nonRoot}}
}
