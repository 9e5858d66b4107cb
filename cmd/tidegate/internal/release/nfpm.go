package main

import (
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"
)

// nfpmConfig turns the part nfpms of the GoReleaser configuration into a configuration of nfpm, for
// packages of one program without GoReleaser.
func nfpmConfig(config, program, arch, version string) ([]byte, error) {
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	var file struct {
		NFPMs []map[string]any `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if len(file.NFPMs) != 1 {
		return nil, fmt.Errorf("%s has %d entries of nfpms, want 1", config, len(file.NFPMs))
	}
	p := file.NFPMs[0]
	contents, ok := p["contents"].([]any)
	if !ok {
		return nil, fmt.Errorf("%s: nfpms has no contents", config)
	}
	p["contents"] = append(contents, map[string]any{
		"src": program, "dst": fmt.Sprint(p["bindir"]) + "/tidegate", "file_info": map[string]any{"mode": 0o755},
	})
	p["name"], p["version"], p["arch"], p["platform"] = p["package_name"], version, arch, "linux"
	for _, own := range []string{"package_name", "formats", "bindir"} { // of GoReleaser
		delete(p, own)
	}
	return yaml.Marshal(p)
}
