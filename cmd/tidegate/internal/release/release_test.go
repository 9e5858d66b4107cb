package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
)

const packaging = "../../packaging/"

func read(t *testing.T, path string) string {
	t.Helper()
	text := assert.Value(os.ReadFile(path))(t)
	return string(text)
}

func root() *cobra.Command {
	return serve.Root(cli.New(strings.NewReader(""), io.Discard, io.Discard))
}

// The image has the files, owners and settings of the specification, and the digests of its blobs
// are right.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	program, roots := filepath.Join(dir, "program"), filepath.Join(dir, "roots.pem")
	for path, text := range map[string]string{program: "the program", roots: "the roots"} {
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	image := filepath.Join(dir, "image")
	assert.Must(t, writeImage(image, "1.2.3", at, roots, []string{"linux/amd64=" + program, "linux/arm64=" + program}))
	for _, arch := range []string{"amd64", "arm64"} {
		c, files, err := load(image, platform{arch, "linux"})
		assert.Must(t, err)
		if c.Architecture != arch || c.OS != "linux" || c.Config.User != "65532:65532" || c.Config.Labels["org.opencontainers.image.version"] != "1.2.3" {
			t.Errorf("the configuration is %+v", c)
		}
		var got []string
		for r := tar.NewReader(bytes.NewReader(files)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			assert.Must(t, err)
			content, err := io.ReadAll(r)
			assert.Must(t, err)
			line := fmt.Sprintf("%04o %d:%d %s", h.Mode, h.Uid, h.Gid, h.Name)
			if strings.HasPrefix(string(content), "the ") {
				line += " = " + string(content)
			}
			got = append(got, line)
		}
		want := []string{
			"0700 65532:65532 data/", "0755 0:0 etc/", "0644 0:0 etc/group", "0644 0:0 etc/passwd", "0755 0:0 etc/ssl/", "0755 0:0 etc/ssl/certs/",
			"0644 0:0 etc/ssl/certs/ca-certificates.crt = the roots", "0755 0:0 tidegate = the program", "1777 0:0 tmp/",
		}
		assert.That(t, slices.Equal(got, want), "the files are\n%s", strings.Join(got, "\n"))
	}
	if _, _, err := load(image, platform{"s390x", "linux"}); err == nil {
		t.Error("an image for a platform that was not given")
	}
	again := filepath.Join(dir, "again")
	assert.Must(t, writeImage(again, "1.2.3", at, roots, []string{"linux/amd64=" + program, "linux/arm64=" + program}))
	if read(t, filepath.Join(image, "index.json")) != read(t, filepath.Join(again, "index.json")) {
		t.Error("two images of the same program differ")
	}
	blobs, err := filepath.Glob(filepath.Join(again, "blobs", "sha256", "*"))
	if err != nil || len(blobs) != 5 { // two manifests, two configurations, one layer for both
		t.Errorf("the blobs are %v (%v)", blobs, err)
	}
	for _, b := range blobs {
		assert.Must(t, os.WriteFile(b, []byte("damaged"), 0o600))
	}
	if _, _, err := load(again, platform{"amd64", "linux"}); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("damaged blobs: %v", err)
	}
}

// The last stage of the Dockerfile has the settings of the image.
func TestDockerfileAgrees(t *testing.T) {
	want := imageSettings("")
	text := read(t, packaging+"Dockerfile")
	last := text[strings.LastIndex(text, "\nFROM scratch\n"):]
	list := func(words []string) string { return `["` + strings.Join(words, `","`) + `"]` }
	h := want.Healthcheck
	for instruction, value := range map[string]string{
		"USER": want.User, "ENV": strings.Join(want.Env, " "), "WORKDIR": want.WorkingDir, "VOLUME": `["/data"]`,
		"EXPOSE": "8081/tcp 8082/tcp", "STOPSIGNAL": want.StopSignal, "ENTRYPOINT": list(want.Entrypoint), "CMD": list(want.Cmd),
		"HEALTHCHECK": fmt.Sprintf("--interval=%v --timeout=%v --start-period=%v --retries=%d CMD %s", h.Interval, h.Timeout, h.StartPeriod, h.Retries, list(h.Test[1:])),
	} {
		if n := strings.Count(last, "\n"+instruction+" "); n != 1 || !strings.Contains(last, "\n"+instruction+" "+value+"\n") {
			t.Errorf("the Dockerfile has %d times %s, and not %s", n, instruction, value)
		}
	}
	assert.That(t, len(want.Volumes) == 1 && len(want.ExposedPorts) == 2 && h.Test[0] == "CMD", "the settings are %+v", want)
	for _, copied := range []string{"/etc/ssl/certs/ca-certificates.crt", "--chown=65532:65532 /out/data /data", "/out/tidegate /tidegate", "/out/passwd /out/group /etc/"} {
		assert.That(t, strings.Contains(last, copied), "the Dockerfile does not copy %s", copied)
	}
}

// The compose file publishes the ports of the image on the loopback address only, keeps /data, and
// starts a command that exists.
func TestComposeAgrees(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Build   struct{ Context, Dockerfile string }
			Command []string
			Ports   []string
			Volumes []string
		}
		Volumes map[string]any
	}
	assert.Must(t, yaml.Unmarshal([]byte(read(t, packaging+"compose.yaml")), &file))
	s := file.Services["tidegate"]
	for _, p := range s.Ports {
		m := regexp.MustCompile(`^127\.0\.0\.1:(\d+):(\d+)$`).FindStringSubmatch(p)
		assert.MustThat(t, m != nil, "the port %q is not on the loopback address", p)
		if _, ok := imageSettings("").ExposedPorts[m[2]+"/tcp"]; !ok {
			t.Errorf("the image does not expose %s", p)
		}
	}
	if len(s.Ports) != 2 || !slices.Equal(s.Volumes, []string{"data:/data"}) || len(file.Volumes) != 1 {
		t.Errorf("the service is %+v", s)
	}
	assert.NoError(t, assert.Err(os.Stat(filepath.Join(packaging, s.Build.Context, s.Build.Dockerfile))))
	c, rest, err := root().Find(s.Command)
	assert.That(t, err == nil && c.Name() == "serve" && c.ParseFlags(rest) == nil, "the command is %q: %v", s.Command, err)
}

// Each command has a page with its flags, and pages follow the format of man.
func TestManPages(t *testing.T) {
	pages := manPages(root(), "1.2.3", time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC))
	var visit func(c *cobra.Command)
	n := 0
	visit = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			if below.Name() != "help" && !below.Hidden {
				visit(below)
			}
		}
		n++
		name := pageName(c) + "." + sectionOf(c)
		page, ok := pages[name]
		assert.That(t, ok, "there is no page %s", name)
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, `\fB`+strings.ReplaceAll("--"+f.Name, "-", `\-`)+`\fR`) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
	}
	visit(root())
	assert.That(t, len(pages) == n && n >= 40, "%d pages of %d commands", len(pages), n)
	request := regexp.MustCompile(`^\.(TH|SH|TP|B|nf|fi|nh|ad)\b`)
	for name, page := range pages {
		if !strings.HasPrefix(page, ".TH \"TIDEGATE") || !strings.Contains(page, "\n.SH NAME\ntidegate") {
			t.Errorf("%s begins with %.60q", name, page)
		}
		for line := range strings.Lines(page) {
			assert.That(t, line[0] != '.' && line[0] != '\'' || request.MatchString(line), "%s has the request %q", name, line)
		}
	}
	if got, want := pages["tidegate-config-check.1"], read(t, "testdata/tidegate-config-check.1"); got != want {
		t.Errorf("the page is\n%s", got)
	}
	for in, want := range map[string]string{".x": `\&.x`, "'x": `\&'x`, `a\b-c`: `a\eb\-c`, "a\n.b": "a\n\\&.b"} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) is %q, want %q", in, got, want)
		}
	}
}

// The files for packages: all pages and scripts, the same at each run.
func TestFiles(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		assert.Must(t, writeFiles(dir, "1.2.3", time.Unix(0, 0)))
	}
	files := 0
	err := filepath.WalkDir(first, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		relative, err := filepath.Rel(first, path)
		if text := read(t, path); text == "" || text != read(t, filepath.Join(second, relative)) {
			t.Errorf("%s is empty, or differs at the second run", relative)
		}
		return err
	})
	assert.That(t, err == nil && files >= 45, "%d files (%v)", files, err)
	for file, word := range map[string]string{"bash/tidegate": "__start_tidegate", "zsh/_tidegate": "#compdef", "fish/tidegate.fish": "complete -c tidegate", "powershell/tidegate.ps1": "Register-ArgumentCompleter"} {
		assert.That(t, strings.Contains(read(t, filepath.Join(first, "completion", file)), word), "%s lacks %q", file, word)
	}
}

// The configuration of the release names files and variables that exist, and packages of it can be
// made with nfpm alone.
func TestReleaseConfiguration(t *testing.T) {
	t.Chdir("../../../..")
	text := read(t, ".goreleaser.yaml")
	var file struct {
		Builds []struct {
			Goos, Goarch, Ldflags, Env []string
		}
	}
	assert.Must(t, yaml.Unmarshal([]byte(text), &file))
	b := file.Builds[0]
	if !slices.Equal(b.Goos, []string{"linux", "darwin", "windows"}) || !slices.Equal(b.Goarch, []string{"amd64", "arm64"}) || !slices.Equal(b.Env, []string{"CGO_ENABLED=0"}) {
		t.Errorf("the build is %+v", b)
	}
	source := read(t, "cmd/internal/cli/help.go")
	for _, m := range regexp.MustCompile(`-X github\.com/tidegate/tidegate/cmd/internal/program\.(\w+)=`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^\t` + m[1] + ` +string`).MatchString(source) {
			t.Errorf("package cli has no variable %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|postinstall|preremove|postremove): (\S+)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(m[1]); err != nil && !strings.HasPrefix(m[1], "dist-files/") {
			t.Error(err)
		}
	}
	packed := assert.Value(nfpmConfig(".goreleaser.yaml", "dist/tidegate", runtime.GOARCH, "1.2.3"))(t)
	var p struct {
		Name, Version, Arch, Maintainer, Formats string
		Contents                                 []struct{ Src, Dst string }
	}
	assert.Must(t, yaml.Unmarshal(packed, &p))
	last := p.Contents[len(p.Contents)-1]
	if p.Name != "tidegate" || p.Version != "1.2.3" || p.Arch != runtime.GOARCH || p.Formats != "" || last.Src != "dist/tidegate" || last.Dst != "/usr/bin/tidegate" {
		t.Errorf("the configuration of nfpm is\n%s", packed)
	}
}

// The service has no right that it does not need, and its program, file and user are those of the
// package.
func TestService(t *testing.T) {
	unit := read(t, packaging+"tidegate.service")
	for _, line := range []string{
		"User=tidegate", "ExecStart=/usr/bin/tidegate serve --config /etc/tidegate/tidegate.yaml", "CapabilityBoundingSet=", "NoNewPrivileges=yes",
		"ProtectSystem=strict", "ProtectHome=yes", "PrivateDevices=yes", "PrivateTmp=yes", "MemoryDenyWriteExecute=yes", "SystemCallArchitectures=native",
		"RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX", "StateDirectory=tidegate",
	} {
		assert.That(t, strings.Contains(unit, "\n"+line+"\n"), "the service lacks %s", line)
	}
	assert.That(t, strings.HasPrefix(read(t, packaging+"sysusers.conf"), "u tidegate "), "sysusers.conf does not create the user")
	c := root()
	c.SetArgs([]string{"config", "check", packaging + "tidegate.yaml"})
	assert.NoError(t, c.Execute(), "the configuration of the package")
	for _, name := range []string{"postinstall.sh", "preremove.sh", "postremove.sh"} {
		if info, err := os.Stat(packaging + name); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be run (%v)", name, err)
		}
	}
}
