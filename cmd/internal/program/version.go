package program

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

func versionCommand(a *call.App) *cobra.Command {
	return a.Subject(&cobra.Command{
		Use: "version", GroupID: "tools",
		Short:   "Print the version, the commit and the platform",
		Example: "  tidegate version -o json",
	}, func() (any, [][2]string) {
		v := buildOf()
		return v, [][2]string{{"version", v.Version}, {"commit", v.Commit}, {"built", v.Time}, {"go", v.Go}, {"platform", v.Platform}}
	})
}

// A build describes the program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// A release sets these with -ldflags -X. Empty means the values that go build stamps.
var (
	releaseVersion string // without a leading v
	releaseCommit  string
	releaseTime    string // of the commit, RFC 3339
)

func buildOf() build {
	b := build{Version: Version(), Commit: releaseCommit, Time: releaseTime, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || releaseVersion != "" {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				b.Commit += " with changes"
			}
		}
	}
	return b
}

// Version returns the version of the program.
func Version() string {
	if releaseVersion != "" {
		return "v" + releaseVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
