package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

var (
	chromium    = flag.String("chromium", "", "path of a Chromium; without one nothing is tested")
	screenshots = flag.String("screenshots", "", "directory for screenshots of all pages")
)

// browser is the one process that all tests share; each test has tabs of its own.
var browser context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	if *chromium == "" {
		fmt.Println("without -chromium there is no browser: nothing is tested")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	o := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(*chromium),
		chromedp.NoSandbox, // the tests may run as root, and load only their own pages
		chromedp.WindowSize(1280, 900),
		chromedp.Flag("enable-precise-memory-info", true),
		chromedp.Flag("js-flags", "--expose-gc"),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("force-prefers-reduced-motion", true),
		chromedp.Env("LANG=en_US.UTF-8"),
	)
	alloc, endAlloc := chromedp.NewExecAllocator(context.Background(), o...)
	defer endAlloc()
	ctx, end := chromedp.NewContext(alloc)
	defer end()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Println("Chromium does not start:", err)
		return 1
	}
	browser = ctx //nolint:fatcontext // of all tests
	return m.Run()
}
