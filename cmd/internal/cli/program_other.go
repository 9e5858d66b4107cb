//go:build !unix

package cli

import "os"

func (p *program) separate()        {}
func (p *program) kill() error      { return p.Process.Kill() }
func (p *program) terminate() error { return p.Process.Signal(os.Interrupt) }
func (p *program) endChildren()     {}

func followSignals() {}

// endBy kills all programs, and ends this process.
func endBy(os.Signal) {
	killAll()
	os.Exit(1)
}
