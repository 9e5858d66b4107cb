package standalone

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
	"slices"
	"strconv"
	"sync"
)

var (
	//go:embed java/Standalone.java
	source []byte
	//go:embed java/pom.xml
	pom []byte
	//go:embed java/log4j2.xml
	logging []byte
)

const oldestJava = 17

// An installation is a directory with the jars, the compiled class and the configuration of the
// log, and the Java to run them.
type installation struct{ dir, java string }

// installing lets one broker of this process install; the others then find the installation.
var installing sync.Mutex

// install returns the installation in the user's cache directory, which it creates if there is
// none of this version.
func install(ctx context.Context) (installation, error) {
	installing.Lock()
	defer installing.Unlock()
	java, err := tool("java")
	if err != nil {
		return installation{}, err
	}
	if err := checkJava(ctx, java); err != nil {
		return installation{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return installation{}, err
	}
	sum := sha256.Sum256(slices.Concat(pom, source, logging))
	dir := filepath.Join(cache, "tidegate-pulsar", fmt.Sprintf("%x", sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return installation{dir, java}, nil
	}
	javac, err := tool("javac")
	if err != nil {
		return installation{}, err
	}
	mvn, err := tool("mvn")
	if err != nil {
		return installation{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return installation{}, err
	}
	// Everything is created beside its place and renamed, because two programs may install at once.
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return installation{}, err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	for name, text := range map[string][]byte{"Standalone.java": source, "pom.xml": pom, "log4j2.xml": logging} {
		if err := os.WriteFile(filepath.Join(temporary, name), text, 0o600); err != nil {
			return installation{}, err
		}
	}
	// Offline first: it suffices with the jars in Maven's local repository, and is faster.
	for _, network := range [][]string{{"--offline"}, nil} {
		if err = command(ctx, temporary, mvn, append(network, "--batch-mode", "--quiet", "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=lib")...); err == nil {
			break
		}
	}
	if err != nil {
		return installation{}, fmt.Errorf("maven could not download Pulsar: %w", err)
	}
	if err := command(ctx, temporary, javac, "-cp", "lib/*", "-d", "classes", "Standalone.java"); err != nil {
		return installation{}, err
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, other := os.Stat(dir); other != nil {
			return installation{}, err
		}
	}
	return installation{dir, java}, nil
}

// tool returns the path of a program of the JDK or of Maven.
func tool(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" && name != "mvn" {
		if p, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		what := fmt.Sprintf("a JDK of version %d or later", oldestJava)
		if name == "mvn" {
			what = "Maven"
		}
		return "", fmt.Errorf("%s is missing: install %s: %w", name, what, err)
	}
	return p, nil
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

func checkJava(ctx context.Context, java string) error {
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s -version: %w\n%s", java, err, out)
	}
	return checkVersion(out)
}

// checkVersion checks the output of java -version.
func checkVersion(out []byte) error {
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("this is not the version of a Java: %q", out)
	}
	if n, _ := strconv.Atoi(string(m[1])); n < oldestJava { // 1 is Java 1.8
		return fmt.Errorf("java has version %s: install a JDK of version %d or later, or set JAVA_HOME", m[1], oldestJava)
	}
	return nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", filepath.Base(name), err), errors.New(string(out)))
	}
	return nil
}
