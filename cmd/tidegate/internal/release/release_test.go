package main

import (
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

// dockerfile returns the value of an instruction in the last stage of the Dockerfile.
func dockerfile(t *testing.T, instruction string) string {
	t.Helper()
	text := read(t, packaging+"Dockerfile")
	last := text[strings.LastIndex(text, "\nFROM scratch\n"):]
	found := regexp.MustCompile("(?m)^"+instruction+" (.*)$").FindAllStringSubmatch(last, -1)
	assert.MustThat(t, len(found) == 1, "the Dockerfile has %d times %s", len(found), instruction)
	return found[0][1]
}

// The image has a command and a health check that exist, and its environment has settings.
func TestDockerfile(t *testing.T) {
	for instruction, want := range map[string]string{
		"USER": "65532:65532", "WORKDIR": "/data", "VOLUME": `["/data"]`, "STOPSIGNAL": "SIGTERM", "ENTRYPOINT": `["/tidegate"]`, "CMD": `["serve"]`,
	} {
		assert.Equal(t, instruction, dockerfile(t, instruction), want)
	}
	if check := dockerfile(t, "HEALTHCHECK"); !strings.HasSuffix(check, ` CMD ["/tidegate","serve","--probe"]`) { // TestProbe runs it
		t.Errorf("the health check is %s", check)
	}
	for variable := range strings.FieldsSeq(dockerfile(t, "ENV")) {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	var out strings.Builder
	c := serve.Root(cli.New(strings.NewReader(""), &out, io.Discard))
	c.SetArgs([]string{"serve", "--print-config", "--insecure"})
	assert.NoError(t, c.Execute())
	assert.Contains(t, "the configuration of the image", out.String(), "data: /data ", "grpc: :8081 ", "http: :8082 ")
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
		assert.Contains(t, "the ports of the image", dockerfile(t, "EXPOSE"), m[2]+"/tcp")
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
