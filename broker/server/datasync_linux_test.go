package server_test

import (
	"os"
	"syscall"
)

// datasync makes the content of f durable, without its times.
func datasync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
