package javaserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// ErrMissing is the error of a machine that lacks Java, Maven, or a sufficient version of Java.
var ErrMissing = errors.New("the machine lacks what the server needs")

// A Program is a server that Maven downloads.
type Program struct {
	// Name is the name of the server, for example "Pulsar". Its installations are in the directory
	// tidegate-pulsar of the user's cache.
	Name string

	// Version is the version of the server, which Maven gets as the property server.version. Empty
	// means that pom.xml has it.
	Version string

	// Files are the files of an installation. pom.xml is one, and has the dependencies.
	Files []File

	// Source is the one of Files that javac compiles. Empty means none: Java suffices instead of a
	// JDK.
	Source string

	// OldestJava is the oldest version of Java that can run the server.
	OldestJava int
}

// A File is a file of an installation.
type File struct {
	Name string
	Text []byte
}

// An Installation is a directory with the Files of a Program and its jars, and the Java to run
// them.
type Installation struct {
	Dir     string
	Java    string // the program
	Version int    // of Java
}

// ClassPath returns the class path of the compiled class and of all jars.
func (i Installation) ClassPath() string {
	return filepath.Join(i.Dir, "classes") + string(os.PathListSeparator) + filepath.Join(i.Dir, "lib", "*")
}

// installing lets one goroutine install; the others then find the installation.
var installing sync.Mutex

// Install returns the installation in the user's cache, which it creates if there is none of this
// version and these files. It blocks while Maven downloads.
func (p Program) Install(ctx context.Context) (Installation, error) {
	installing.Lock()
	defer installing.Unlock()
	java, err := p.tool("java")
	if err != nil {
		return Installation{}, err
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return Installation{}, fmt.Errorf("%s -version: %w\n%s", java, err, out)
	}
	version, err := p.javaVersion(out)
	if err != nil {
		return Installation{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Installation{}, err
	}
	sum := sha256.New()
	for _, f := range p.Files {
		sum.Write(f.Text)
	}
	name := fmt.Sprintf("%x", sum.Sum(nil)[:8])
	if p.Version != "" {
		name = p.Version + "-" + name
	}
	i := Installation{filepath.Join(cache, "tidegate-"+strings.ToLower(p.Name), name), java, version}
	if _, err := os.Stat(i.Dir); err == nil {
		return i, nil
	}
	return i, p.create(ctx, i.Dir)
}

// create creates the directory of an installation.
func (p Program) create(ctx context.Context, dir string) error {
	mvn, err := p.tool("mvn")
	if err != nil {
		return err
	}
	javac := ""
	if p.Source != "" {
		if javac, err = p.tool("javac"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// Everything is created beside its place and renamed, because two programs may install at once.
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	for _, f := range p.Files {
		if err := os.WriteFile(filepath.Join(temporary, f.Name), f.Text, 0o600); err != nil {
			return err
		}
	}
	args := []string{"--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"}
	if p.Version != "" {
		args = append(args, "-Dserver.version="+p.Version)
	}
	// Offline first: it suffices with the jars in Maven's local repository, and is faster.
	if command(ctx, temporary, mvn, append(args, "--offline")...) != nil {
		if err := command(ctx, temporary, mvn, args...); err != nil {
			return fmt.Errorf("maven could not download %s: %w", strings.TrimSpace(p.Name+" "+p.Version), err)
		}
	}
	if javac != "" {
		if err := command(ctx, temporary, javac, "-cp", "lib/*", "-d", "classes", p.Source); err != nil {
			return err
		}
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, other := os.Stat(dir); other != nil {
			return err
		}
	}
	return nil
}

// tool returns the path of a program of Java or of Maven.
func (p Program) tool(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" && name != "mvn" {
		if path, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		remedy := p.java()
		if name == "mvn" {
			remedy = "Maven"
		}
		return "", fmt.Errorf("%w: %s is missing: install %s: %w", ErrMissing, name, remedy, err)
	}
	return path, nil
}

// java describes the Java that the program needs.
func (p Program) java() string {
	kind := "JDK"
	if p.Source == "" {
		kind = "Java"
	}
	return fmt.Sprintf("a %s of version %d or later", kind, p.OldestJava)
}

var versionLine = regexp.MustCompile(`version "(?:1\.)?(\d+)`) // "1.8.0" is Java 8

// javaVersion returns the version in the output of java -version, or an error if it is too old.
func (p Program) javaVersion(out []byte) (int, error) {
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("this is not the version of a Java: %q", out)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil || n < p.OldestJava {
		return 0, fmt.Errorf("%w: java has version %s: install %s, or set JAVA_HOME", ErrMissing, m[1], p.java())
	}
	return n, nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", filepath.Base(name), err), errors.New(string(out)))
	}
	return nil
}
