package runner

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

//go:embed pom.xml
var pom []byte

// ErrMissing is the error of [Up] on a machine without Java, without Maven, or with an operating
// system that the runner does not support.
var ErrMissing = errors.New("the machine lacks what RocketMQ needs")

const oldestJava = 8

// An installation has the jars of one version of RocketMQ, and the Java to run them.
type installation struct {
	lib  string
	java string
	args []string // of every process, for this version of Java
}

// install returns the installation of a version in the user's cache directory, which it creates on
// demand.
func install(ctx context.Context, version string) (installation, error) {
	java, err := program("java")
	if err != nil {
		return installation{}, err
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return installation{}, fmt.Errorf("%s -version: %w\n%s", java, err, out)
	}
	args, err := javaArgs(out)
	if err != nil {
		return installation{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return installation{}, err
	}
	sum := sha256.Sum256(pom)
	dir := filepath.Join(cache, "tidegate-rocketmq", fmt.Sprintf("%s-%x", version, sum[:4]))
	i := installation{lib: filepath.Join(dir, "lib"), java: java, args: args}
	if _, err := os.Stat(dir); err == nil {
		return i, nil
	}
	return i, download(ctx, version, dir)
}

// download copies the jars of a version into a directory that does not exist yet.
func download(ctx context.Context, version, dir string) error {
	mvn, err := program("mvn")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// The files are created beside their place and renamed, because two programs may install at
	// once.
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := os.WriteFile(filepath.Join(temporary, "pom.xml"), pom, 0o600); err != nil {
		return err
	}
	// Offline first: it suffices with the jars in Maven's local repository, and is faster.
	for _, network := range [][]string{{"--offline"}, nil} {
		cmd := exec.CommandContext(ctx, mvn, append(network, "--batch-mode", "--quiet", "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=lib", "-Drocketmq.version="+version)...)
		cmd.Dir = temporary
		out, failed := cmd.CombinedOutput()
		if err = failed; err == nil {
			break
		}
		err = fmt.Errorf("maven could not download RocketMQ %s: %w\n%s", version, err, out)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, other := os.Stat(dir); other != nil {
			return err
		}
	}
	return nil
}

// program returns the path of java or mvn.
func program(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" && name == "java" {
		if p, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		what := fmt.Sprintf("a Java of version %d or later", oldestJava)
		if name == "mvn" {
			what = "Maven"
		}
		return "", fmt.Errorf("%w: there is no %s: install %s: %w", ErrMissing, name, what, err)
	}
	return p, nil
}

var javaVersion = regexp.MustCompile(`version "(1\.)?(\d+)`)

// javaArgs returns the arguments that RocketMQ needs with the Java that printed the output of
// java -version.
func javaArgs(out []byte) ([]string, error) {
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("this is not the version of a Java: %q", out)
	}
	n, err := strconv.Atoi(string(m[2]))
	switch {
	case err != nil || n < oldestJava:
		return nil, fmt.Errorf("%w: java has version %s: install a Java of version %d or later, or set JAVA_HOME", ErrMissing, m[2], oldestJava)
	case n == 8:
		return nil, nil
	}
	return []string{
		"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
		"--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
		"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
	}, nil
}
