// Package browsertest tests the web console in a real Chromium. It is a module of its own, so that
// tidegate does not depend on the client of the browser (chromedp). .ci/run has the step "console",
// which runs
//
//	go test . -chromium /usr/bin/chromium -screenshots DIR
//
// Without -chromium nothing is tested.
package browsertest
