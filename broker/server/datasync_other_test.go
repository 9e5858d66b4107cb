//go:build !linux

package server_test

import "os"

func datasync(f *os.File) error { return f.Sync() }
