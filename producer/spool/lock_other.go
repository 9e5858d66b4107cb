//go:build (!unix && !windows) || aix || solaris

package spool

import (
	"errors"
	"os"
)

// tryLock fails: without a lock two processes could write one spool.
func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
