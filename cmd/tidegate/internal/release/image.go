package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The user of the image; /data is its directory.
const nonRoot = 65532

// An ociConfig is the configuration of an image: "OCI Image Format Specification", config.md.
// Healthcheck is Docker's field, which it reads from images in this format too.
type ociConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       settings  `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type settings struct {
	User         string              `json:"User"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts"`
	Env          []string            `json:"Env"`
	Entrypoint   []string            `json:"Entrypoint"`
	Cmd          []string            `json:"Cmd"`
	Volumes      map[string]struct{} `json:"Volumes"`
	WorkingDir   string              `json:"WorkingDir"`
	Labels       map[string]string   `json:"Labels"`
	StopSignal   string              `json:"StopSignal"`
	Healthcheck  healthcheck         `json:"Healthcheck"`
}

// The times of a healthcheck are in nanoseconds.
type healthcheck struct {
	Test        []string      `json:"Test"`
	Interval    time.Duration `json:"Interval"`
	Timeout     time.Duration `json:"Timeout"`
	StartPeriod time.Duration `json:"StartPeriod"`
	Retries     int           `json:"Retries"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// A descriptor names a blob.
type descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`
	Platform  *platform `json:"platform,omitempty"`

	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// imageSettings are the settings of the image. The Dockerfile has the same ones.
func imageSettings(version string) settings {
	return settings{
		User:         fmt.Sprintf("%d:%d", nonRoot, nonRoot),
		ExposedPorts: map[string]struct{}{"8081/tcp": {}, "8082/tcp": {}},
		Env:          []string{"TIDEGATE_DATA=/data", "TIDEGATE_GRPC=:8081", "TIDEGATE_HTTP=:8082"},
		Entrypoint:   []string{"/tidegate"},
		Cmd:          []string{"serve"},
		Volumes:      map[string]struct{}{"/data": {}},
		WorkingDir:   "/data",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "tidegate",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.source":   "https://github.com/tidegate/tidegate",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
		StopSignal: "SIGTERM",
		Healthcheck: healthcheck{
			Test:     []string{"CMD", "/tidegate", "serve", "--probe"},
			Interval: 10 * time.Second, Timeout: 3 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
	}
}

// A layout is a directory in the format of "OCI Image Layout Specification".
type layout struct{ dir string }

// blob writes a blob and returns its descriptor.
func (l layout) blob(mediaType string, content []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	if err := writeFile(filepath.Join(l.dir, "blobs", "sha256", sum), string(content)); err != nil {
		return descriptor{}, err
	}
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: int64(len(content))}, nil
}

func (l layout) document(mediaType string, v any) (descriptor, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, content)
}

// writeImage writes an image for each platform, and an index of them.
func writeImage(dir, version string, at time.Time, roots string, programs []string) error {
	trusted, err := os.ReadFile(roots)
	if err != nil {
		return fmt.Errorf("the certificates of --ca: %w", err)
	}
	l := layout{dir}
	all := index{SchemaVersion: 2, MediaType: mediaIndex}
	for _, p := range programs {
		target, path, ok := strings.Cut(p, "=")
		system, arch, ok2 := strings.Cut(target, "/")
		if !ok || !ok2 {
			return fmt.Errorf("%q is no program; give OS/ARCH=PATH", p)
		}
		program, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		d, err := l.image(version, at, platform{arch, system}, program, trusted)
		if err != nil {
			return err
		}
		all.Manifests = append(all.Manifests, d)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "index.json"), string(text))
}

func (l layout) image(version string, at time.Time, on platform, program, trusted []byte) (descriptor, error) {
	files, err := layer(at, program, trusted)
	if err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(files); err != nil {
		return descriptor{}, err
	}
	if err := w.Close(); err != nil {
		return descriptor{}, err
	}
	blob, err := l.blob(mediaLayer, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	config, err := l.document(mediaConfig, ociConfig{
		Created: at, Architecture: on.Architecture, OS: on.OS, Config: imageSettings(version),
		RootFS: rootFS{"layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(files))}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.document(mediaManifest, manifest{SchemaVersion: 2, MediaType: mediaManifest, Config: config, Layers: []descriptor{blob}})
	d.Platform = &on
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	return d, err
}

// layer is the only layer of the image: the program, the certificates, the names of the user, and
// the user's directory for the data.
func layer(at time.Time, program, trusted []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names := fmt.Sprintf("root:x:0:0:root:/:/none\ntidegate:x:%d:%d:tidegate:/data:/none\n", nonRoot, nonRoot)
	groups := fmt.Sprintf("root:x:0:\ntidegate:x:%d:\n", nonRoot)
	for _, f := range []struct {
		name    string
		mode    int64
		owner   int
		content []byte // nil for a directory
	}{
		{"data/", 0o700, nonRoot, nil},
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, []byte(groups)},
		{"etc/passwd", 0o644, 0, []byte(names)},
		{"etc/ssl/", 0o755, 0, nil},
		{"etc/ssl/certs/", 0o755, 0, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, trusted},
		{"tidegate", 0o755, 0, program},
		{"tmp/", 0o1777, 0, nil},
	} {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, ModTime: at, Size: int64(len(f.content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if f.content == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
