//go:build !unix || aix || solaris

package runner

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// tryLock fails: here the runner could not tell its processes from others either.
func tryLock(*os.File) (bool, error) {
	return false, fmt.Errorf("%w: the runner does not support %s", ErrMissing, runtime.GOOS)
}

func detach(*exec.Cmd) {}
