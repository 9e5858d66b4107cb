package transporttest

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// faultVariable names the environment variable that breaks the model.
const faultVariable = "TRANSPORTTEST_FAULT"

func TestSuiteInVirtualTime(t *testing.T) {
	Run(t, modelFixture, Options{Capabilities: everything, Virtual: true})
}

var realUnit = flag.Duration("real.unit", 0, "run every case in real time, with this unit; 0 for the cases that wait for nothing")

// patient are the cases in which no time passes. By default only they run in real time, with a
// unit that no slow machine exceeds: a busy machine breaks the times of the others.
var patient = []string{
	"AckMany", "AttemptsExhausted", "BadGroup", "BodyOfEverySize", "CancelledReceivesRaceSends",
	"Capabilities", "ClosedForGood", "ConsumerSettings", "DeadContext", "FIFOAttemptID",
	"FIFODeadLetterLetsTheNextGo", "FIFONeedsAGroup", "FIFOSettings", "GiveBack", "GroupsAreApart",
	"NoSuchTopic", "NothingIsShared", "ProducerSettings", "ReceiveMax", "RoundTrip", "SendOne",
	"SendRefused", "SuspendIsNoFailure",
}

func TestSuiteInRealTime(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return
	}
	opts := Options{Capabilities: everything, Unit: *realUnit}
	if opts.Unit == 0 {
		opts.Unit = 5 * time.Minute
		opts.only = func(c testCase) bool { return slices.Contains(patient, c.name) }
	}
	Run(t, modelFixture, opts)
}

func TestSuiteOfAPlainServer(t *testing.T) {
	if os.Getenv(faultVariable) == "" {
		Run(t, plainFixture, Options{Virtual: true})
	}
}

// What is left out is what a real RocketMQ does otherwise, and nothing else.
func TestCasesByCapabilities(t *testing.T) {
	names := func(list []testCase) (names []string) {
		for _, c := range list {
			names = append(names, c.name)
		}
		slices.Sort(names)
		return names
	}
	for _, tt := range []struct {
		can  transport.Capabilities
		left []string
	}{
		{everything, nil},
		{transport.Capabilities{Batch: true}, []string{"CancelledReceiveIsRepeated", "RetryByLadder", "RetryResult", "Snooze", "SnoozeKeepsTheOrder", "SuspendIsNoFailure"}},
		{transport.Capabilities{}, []string{"CancelledReceiveIsRepeated", "DeadLetterTooLate", "FIFOFailedGroupWaitsOthersFlow", "FIFONeedsAGroup", "PushTimeoutsTakeTheLadder", "RetryByLadder", "RetryResult", "Snooze", "SnoozeKeepsTheOrder", "SuspendIsNoFailure"}},
	} {
		apply, left := applicable(tt.can)
		if got := names(left); !slices.Equal(got, tt.left) || len(apply)+len(left) != len(cases) {
			t.Errorf("%+v: without %v and with %d of %d cases, want without %v", tt.can, got, len(apply), len(cases), tt.left)
		}
	}
}

// A suite that passes everything is worth nothing: each of these faults has
// to be found by the case that is there for it.
func TestSuiteFindsFaults(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return // this is the process that the test below started
	}
	for fault, names := range map[string][]string{
		"share body":                     {"NothingIsShared"},
		"wake nobody":                    {"ReceiveIsWoken"},
		"reverse results":                {"SendMany"},
		"filter by hash":                 {"TagFilterIsExact"},
		"no order":                       {"FIFOInFlightGroupWaits"},
		"forget attempt IDs":             {"FIFOAttemptID"},
		"swallow when cancelled":         {"CancelledReceiveTakesNothing"},
		"hide the cause":                 {"DeadContext"},
		"handles name messages":          {"InvisibleUntilTheTimeIsOver"},
		"retry early":                    {"RetryAfter"},
		"retry late":                     {"RetryOutlivesTheLease"},
		"retry does not count":           {"AttemptsExhausted"},
		"change counts from the receipt": {"ChangeInvisibleDuration"},
		"no change twice":                {"ChangeInvisibleDuration"},
		"lose the reason":                {"DeadLetter"},
		"late dead letters succeed":      {"DeadLetterTooLate"},
		"open after Close":               {"ClosedForGood"},
		"no ladder for failures":         {"RetryByLadder"},
		"no ladder for timeouts":         {"PushTimeoutsTakeTheLadder"},
		"no group needed":                {"FIFONeedsAGroup"},
		"a failed group locks the queue": {"FIFOFailedGroupWaitsOthersFlow"},
		"suspending counts":              {"SuspendIsNoFailure"},
		"ignore MaxBytes":                {"ReceiveMaxBytes"},
		"snoozing counts":                {"Snooze"},
		"snooze early":                   {"Snooze", "SnoozeKeepsTheOrder"},
		"tell no results":                {"RetryResult"},
		"tell no capabilities":           {"Capabilities"},
		"forget the settings":            {"ProducerSettings", "ConsumerSettings", "FIFOSettings"},
		"settle with a dead ctx":         {"DeadContext"},
		"open settings after Close":      {"ClosedForGood"},
		"give one at a time":             {"ReceiveMax", "FIFOAttemptID"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0],
				"-test.run=^TestSuiteInVirtualTime$/^("+strings.Join(names, "|")+")$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			for _, name := range names {
				if err == nil || !strings.Contains(string(out), "FAIL: TestSuiteInVirtualTime/"+name+" ") {
					t.Errorf("the case %s did not find it: %v\n%s", name, err, out)
				}
			}
		})
	}
}
