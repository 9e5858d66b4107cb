//go:build !unix

package shell

import "os"

func (p *Program) separate()        {}
func (p *Program) kill() error      { return p.Process.Kill() }
func (p *Program) terminate() error { return p.Process.Signal(os.Interrupt) }
func (p *Program) endChildren()     {}

func followSignals() {}

// EndBy kills all programs, and ends this process.
func EndBy(os.Signal) {
	KillAll()
	os.Exit(1)
}
