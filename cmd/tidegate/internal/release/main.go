// Command release makes the files of a release that are not programs: manual pages, scripts of
// completion, and the image of a container. The program tidegate does not link it.
//
//	go run ./cmd/tidegate/internal/release files -out dist/files
//	go run ./cmd/tidegate/internal/release image -out dist/image linux/amd64=dist/tidegate
//	go run ./cmd/tidegate/internal/release verify dist/image
//	go run ./cmd/tidegate/internal/release nfpm dist/tidegate > nfpm.yaml
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("give a command: files, image, nfpm or verify")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dir := f.String("out", "", "new or empty `directory` for the result")
	version := f.String("version", "devel", "`version` of the release")
	roots := f.String("ca", "/etc/ssl/certs/ca-certificates.crt", "`file` with the certificates that the image trusts")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	at, err := buildTime()
	if err != nil {
		return err
	}
	switch args[0] {
	case "files":
		if *dir == "" || f.NArg() > 0 {
			return fmt.Errorf("usage: files -out DIRECTORY")
		}
		return writeFiles(*dir, *version, at)
	case "image":
		if *dir == "" || f.NArg() == 0 {
			return fmt.Errorf("usage: image -out DIRECTORY OS/ARCH=PROGRAM [OS/ARCH=PROGRAM]")
		}
		return writeImage(*dir, *version, at, *roots, f.Args())
	case "nfpm":
		if f.NArg() != 1 {
			return fmt.Errorf("usage: nfpm PROGRAM")
		}
		text, err := nfpmConfig(".goreleaser.yaml", f.Arg(0), runtime.GOARCH, *version)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	case "verify":
		if f.NArg() != 1 {
			return fmt.Errorf("usage: verify LAYOUT")
		}
		return verify(ctx, f.Arg(0), out)
	}
	return fmt.Errorf("there is no command %q; the commands are files, image, nfpm and verify", args[0])
}

// buildTime is the time in all results: SOURCE_DATE_EPOCH, or 1970, so that the same input gives
// the same files.
func buildTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		text = "0"
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; give seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
