package transporttest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// faultVariable names the environment variable that breaks the model.
const faultVariable = "TRANSPORTTEST_FAULT"

func TestSuiteInVirtualTime(t *testing.T) { Run(t, modelFixture, Options{Virtual: true}) }

func TestSuiteInRealTime(t *testing.T) {
	if os.Getenv(faultVariable) == "" {
		Run(t, modelFixture, Options{Unit: 300 * time.Millisecond})
	}
}

// A suite that passes everything is worth nothing: each of these faults has
// to be found by the case that is there for it.
func TestSuiteFindsFaults(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return // this is the process that the test below started
	}
	for fault, name := range map[string]string{
		"share body":                     "NothingIsShared",
		"wake nobody":                    "ReceiveIsWoken",
		"reverse results":                "SendMany",
		"filter by hash":                 "TagFilterIsExact",
		"no order":                       "FIFOInFlightGroupWaits",
		"forget attempt IDs":             "FIFOAttemptID",
		"swallow when cancelled":         "CancelledReceiveTakesNothing",
		"hide the cause":                 "DeadContext",
		"handles name messages":          "InvisibleUntilTheTimeIsOver",
		"retry early":                    "RetryAfter",
		"retry late":                     "RetryOutlivesTheLease",
		"retry does not count":           "AttemptsExhausted",
		"change counts from the receipt": "ChangeInvisibleDuration",
		"lose the reason":                "DeadLetter",
		"open after Close":               "ClosedForGood",
		"no ladder for timeouts":         "PushTimeoutsTakeTheLadder",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteInVirtualTime$/^"+name+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "FAIL: TestSuiteInVirtualTime/"+name) {
				t.Errorf("the case %s did not find it: %v\n%s", name, err, out)
			}
		})
	}
}
