package serve

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// The broker refuses to serve without keys a directory that it has served with keys. The flag that
// permits it holds for all later starts, until one with keys.
func TestProtect(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		keys, noKeys bool
		want         string // in the error; empty: none
	}{
		{false, false, ""},
		{false, true, ""},
		{true, false, ""},
		{true, false, ""},
		{false, false, "--no-keys"},
		{false, true, ""},
		{false, false, ""},
		{true, false, ""},
		{false, false, "was served with access keys"},
	} {
		err := protect(dir, c.keys, c.noKeys)
		assert.That(t, (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want)), "step %d: protect(%t, %t) = %v, want %q", i, c.keys, c.noKeys, err, c.want)
	}
	assert.NoError(t, protect("", false, false), "in memory")
	if err := protect(filepath.Join(dir, protectedFile), false, false); err == nil {
		t.Error("a directory that cannot be read is accepted")
	}
	assert.That(t, protect(filepath.Join(dir, "none"), true, false) != nil, "a failed write of the mark has no error")
}

// The program refuses to start where the keys are gone, whether they came at start or by SIGHUP.
func TestServeNeedsTheEarlierKeys(t *testing.T) {
	const keys = "access:\n  keys:\n    app:\n      secret: sesame\n"
	refused := func(args ...string) {
		t.Helper()
		var stdout, stderr strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a broker that starts stops then
		defer cancel()
		if code := run(ctx, append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...), &stdout, &stderr); code == 0 ||
			!strings.Contains(stderr.String(), "--no-keys") || strings.Contains(stdout.String(), "ready") {
			t.Errorf("%q: code %d, %s%s", args, code, stdout.String(), stderr.String())
		}
	}
	stop := func(p *process) {
		t.Helper()
		if code := p.stop(); code != 0 {
			t.Fatalf("code %d: %s", code, p.stderr.String())
		}
	}
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	for _, reload := range []bool{false, true} {
		dir := t.TempDir()
		write(t, file, keys)
		if reload {
			write(t, file, "max_backlog: 100\n")
		}
		p := start(t, "--data", dir, "--config", file)
		if reload {
			write(t, file, keys)
			assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
			p.await(t, 0, "configuration reloaded")
		}
		stop(p)
		refused("--data", dir)
		stop(start(t, "--data", dir, "--no-keys"))
		stop(start(t, "--data", dir))
	}
	assert.Must(t, os.WriteFile(file, []byte(keys+"no_keys: true\n"), 0o600))
	refused("--config", file, "--no-keys")
}
