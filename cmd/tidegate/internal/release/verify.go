package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// verify unpacks the image for this platform as an engine does, starts its command with its
// environment and user, runs its health check, sends and receives a message, and stops it. As root
// it runs in the unpacked directory as its root directory; otherwise as this user with its paths.
func verify(ctx context.Context, dir string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, files, err := load(dir, platform{runtime.GOARCH, "linux"})
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "tidegate-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(root) }() // a temporary directory
	if err := unpack(files, root); err != nil {
		return err
	}
	box := container{root: root, config: c.Config}
	broker := box.command(ctx, append(append([]string{}, c.Config.Entrypoint...), append(c.Config.Cmd, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--topic", "orders")...))
	broker.Cancel = func() error { return broker.Process.Signal(os.Interrupt) }
	var log bytes.Buffer
	broker.Stderr = &log
	stdout, err := broker.StdoutPipe()
	if err != nil {
		return err
	}
	if err := broker.Start(); err != nil {
		return fmt.Errorf("the command of the image does not start: %w", err)
	}
	err = box.use(ctx, stdout, c.Config)
	cancel()
	_, _ = io.Copy(io.Discard, stdout)
	if werr := broker.Wait(); err == nil && !errors.Is(werr, context.Canceled) {
		err = werr
	}
	if err != nil {
		return fmt.Errorf("%w\nthe log of the broker:\n%s", err, log.String())
	}
	if kept, err := os.ReadDir(filepath.Join(root, "data")); err != nil || len(kept) == 0 {
		return fmt.Errorf("the broker has written nothing to /data: %v", err) //nolint:errorlint // it may be nil
	}
	fmt.Fprintln(out, "the image starts, is healthy, keeps its data in /data and stops")
	return nil
}

// A container is an unpacked image.
type container struct {
	root   string
	config settings
	addr   []string // variables with the addresses of the broker
}

// command returns a command that runs inside.
func (b *container) command(ctx context.Context, args []string) *exec.Cmd {
	env := append(append([]string{}, b.config.Env...), b.addr...)
	if os.Geteuid() == 0 {
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Path, c.Dir, c.Env, c.Err = args[0], b.config.WorkingDir, env, nil
		confine(c, b.root)
		return c
	}
	for i, v := range env {
		env[i] = strings.Replace(v, "=/", "="+b.root+"/", 1)
	}
	c := exec.CommandContext(ctx, filepath.Join(b.root, args[0]), args[1:]...)
	c.Dir, c.Env = filepath.Join(b.root, b.config.WorkingDir), env
	return c
}

// use reads the addresses of the broker and runs client commands of the image.
func (b *container) use(ctx context.Context, stdout io.Reader, c settings) error {
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the broker is not ready: %w", err)
	}
	var grpc, http string
	if _, err := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &grpc, &http); err != nil {
		return fmt.Errorf("the broker printed %q: %w", line, err)
	}
	b.addr = []string{"TIDEGATE_SERVER_GRPC=" + grpc, "TIDEGATE_SERVER_HTTP=http://" + http, "XDG_CONFIG_HOME=/data/config", "TIDEGATE_HTTP=" + http}
	for _, args := range [][]string{
		c.Healthcheck.Test[1:],
		append(append([]string{}, c.Entrypoint...), "send", "orders", "order 42"),
		append(append([]string{}, c.Entrypoint...), "receive", "billing", "orders", "--then", "ack", "--max", "1", "--expect", "1"),
	} {
		if text, err := b.command(ctx, args).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w\n%s", args, err, text)
		}
	}
	return nil
}

// load reads the image of a platform, and checks the digests of its blobs.
func load(dir string, on platform) (c ociConfig, files []byte, err error) {
	var version struct {
		ImageLayoutVersion string `json:"imageLayoutVersion"`
	}
	var all index
	var m manifest
	if err := readJSON(filepath.Join(dir, "oci-layout"), &version); err != nil {
		return c, nil, err
	}
	if err := readJSON(filepath.Join(dir, "index.json"), &all); err != nil {
		return c, nil, err
	}
	for _, d := range all.Manifests {
		if d.Platform == nil || *d.Platform != on {
			continue
		}
		for _, step := range []struct {
			d    *descriptor
			into any
		}{{&d, &m}, {&m.Config, &c}} {
			content, err := blob(dir, *step.d)
			if err == nil {
				err = json.Unmarshal(content, step.into)
			}
			if err != nil {
				return c, nil, err
			}
		}
		packed, err := blob(dir, m.Layers[0])
		if err != nil {
			return c, nil, err
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return c, nil, err
		}
		if files, err = io.ReadAll(r); err != nil {
			return c, nil, err
		}
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(files)); len(c.RootFS.DiffIDs) != 1 || got != c.RootFS.DiffIDs[0] {
			return c, nil, fmt.Errorf("the layer is %s, and the configuration has %v", got, c.RootFS.DiffIDs)
		}
		return c, files, nil
	}
	return c, nil, fmt.Errorf("%s has no image for %s/%s", dir, on.OS, on.Architecture)
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func blob(dir string, d descriptor) ([]byte, error) {
	name, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok || name != filepath.Base(name) {
		return nil, fmt.Errorf("%q is no digest", d.Digest)
	}
	content, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", name))
	if err != nil {
		return nil, err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != name || int64(len(content)) != d.Size {
		return nil, fmt.Errorf("blob %s has %d bytes with the digest %s, want %d", name, len(content), got, d.Size)
	}
	return content, nil
}

// unpack writes the files of a layer below root, as root with their owners.
func unpack(files []byte, root string) error {
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // another user runs in it
		return err
	}
	r := tar.NewReader(bytes.NewReader(files))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("the layer has the path %q", h.Name)
		}
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(path, h.Uid, h.Gid)
		}
		if err == nil {
			err = os.Chmod(path, h.FileInfo().Mode()) // after the owner, which clears bits
		}
		if err != nil {
			return err
		}
	}
}
