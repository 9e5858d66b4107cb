package transporttest

import (
	"flag"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// faultVariable names the environment variable that breaks the model.
const faultVariable = "TRANSPORTTEST_FAULT"

func TestSuiteInVirtualTime(t *testing.T) {
	Run(t, fixtureOf(perfect()), perfect())
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
	s := perfect()
	s.Virtual, s.Unit = false, *realUnit
	if s.Unit == 0 {
		s.Unit = 5 * time.Minute
		s.only = func(c testCase) bool { return slices.Contains(patient, c.name) }
	}
	Run(t, fixtureOf(s), s)
}

func TestSuiteOfAPlainServer(t *testing.T) {
	Run(t, fixtureOf(Server{}), Server{Virtual: true})
}

// lacking are the fields of Server for promises that RocketMQ keeps, and the cases that fail if the
// Server of the run does not set them.
var lacking = map[string][]string{
	"LacksPositions":     {"RoundTrip"},
	"LacksStoreTimes":    {"RoundTrip"},
	"LacksTopicTypes":    {"SendPartFails", "FIFONeedsAGroup", "PriorityNeedsItsTopic", "LiteNeedsItsTopic"},
	"LacksMissingTopics": {"SendRefused", "NoSuchTopic", "Ping"},
	"LacksExactRetries":  {"RetryAfter", "RetryOutlivesTheLease"},

	"LacksCountedReleases": {"GiveBack"},
	"LacksLiteDeadLetters": {"LiteDeadLetter"},
}

// A server that lacks a promise passes the suite if its Server declares that, with and without the
// other promises. Otherwise it fails.
func TestSuiteOfServersThatLackAPromise(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return
	}
	for field := range reflect.TypeFor[Server]().Fields() {
		cases, ok := lacking[field.Name]
		assert.That(t, strings.HasPrefix(field.Name, "Lacks") == ok, "the table lacking and the fields of Server differ in %s", field.Name)
		if !ok {
			continue
		}
		t.Run(field.Name, func(t *testing.T) {
			t.Run("admitted", func(t *testing.T) {
				for _, s := range []Server{perfect(), {Virtual: true}} {
					reflect.ValueOf(&s).Elem().FieldByIndex(field.Index).SetBool(true)
					if s.LacksExactRetries { // those of a server with a result are the ones that it returns
						s.Capabilities.RetryResult = false
					}
					Run(t, fixtureOf(s), s)
				}
			})
			t.Run("hidden", func(t *testing.T) { finds(t, "TestSuiteInVirtualTime", field.Name, cases) })
		})
	}
}

// The suite leaves out exactly the cases in which a real RocketMQ behaves differently.
func TestCasesByCapabilities(t *testing.T) {
	names := func(list []testCase) (names []string) {
		for _, c := range list {
			names = append(names, c.name)
		}
		slices.Sort(names)
		return names
	}
	for _, tt := range []struct {
		server Server
		left   []string
	}{
		{perfect(), nil},
		{with(AllGuarantees(), transport.Capabilities{Batch: true}), []string{"CancelledReceiveIsRepeated", "NegativeAck", "RetryBySchedule", "RetryResult", "Snooze", "SnoozeKeepsTheOrder", "SuspendIsNoFailure", "Watch"}},
		{with(Server{}, everything), []string{"DeadLetterTooLate", "FIFOFailedGroupWaitsOthersFlow", "LiteChangeDuringReceive", "LiteDeadLetter", "LiteNames", "LiteNeedsItsTopic", "LiteOrder", "LiteServeEnds", "LiteSet", "LiteSettlements", "LiteStart", "LiteSubscribedOnly", "LiteUnsubscribe", "Priorities", "PriorityNeedsItsTopic", "PushTimeoutsTakeTheSchedule"}},
		{Server{}, []string{"CancelledReceiveIsRepeated", "DeadLetterTooLate", "FIFOFailedGroupWaitsOthersFlow", "LiteChangeDuringReceive", "LiteDeadLetter", "LiteNames", "LiteNeedsItsTopic", "LiteOrder", "LiteServeEnds", "LiteSet", "LiteSettlements", "LiteStart", "LiteSubscribedOnly", "LiteUnsubscribe", "NegativeAck", "Priorities", "PriorityNeedsItsTopic", "PushTimeoutsTakeTheSchedule", "RetryBySchedule", "RetryResult", "Snooze", "SnoozeKeepsTheOrder", "SuspendIsNoFailure", "Watch"}},
	} {
		apply, left := applicable(tt.server)
		if got := names(left); !slices.Equal(got, tt.left) || len(apply)+len(left) != len(cases) {
			t.Errorf("%+v: without %v and with %d of %d cases, want without %v", tt.server, got, len(apply), len(cases), tt.left)
		}
		for _, c := range left {
			assert.That(t, c.needs.name != "", "the log does not name the promise that the case %s needs", c.name)
		}
	}
}

func with(s Server, can transport.Capabilities) Server {
	s.Capabilities = can
	return s
}

// A suite that passes everything is worth nothing: each of these faults has
// to be found by the case that is there for it.
func TestSuiteFindsFaults(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return // this is the process that the test below started
	}
	for fault, names := range map[string][]string{
		"share body":                     {"NothingIsShared"},
		"wake no receive":                {"ReceiveIsWoken", "LiteChangeDuringReceive"},
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
		"no ladder for failures":         {"RetryBySchedule"},
		"no ladder for timeouts":         {"PushTimeoutsTakeTheSchedule"},
		"no group needed":                {"FIFONeedsAGroup"},
		"no priorities":                  {"Priorities"},
		"priorities everywhere":          {"PriorityNeedsItsTopic"},
		"a failed group locks the queue": {"FIFOFailedGroupWaitsOthersFlow"},
		"suspending counts":              {"SuspendIsNoFailure", "LiteSettlements"},
		"extended leases do not count":   {"ExtendedLeaseCounts"},
		"ignore MaxBytes":                {"ReceiveMaxBytes"},
		"report no message":              {"Watch"},
		"report all the time":            {"Watch"},
		"leave no watch":                 {"Watch"},
		"snoozing counts":                {"Snooze"},
		"take every verdict":             {"UnsupportedVerdicts"},
		"snooze early":                   {"Snooze", "SnoozeKeepsTheOrder"},

		"negative acknowledgements come early": {"NegativeAck"},

		"deliver every lite topic":    {"LiteSubscribedOnly", "LiteStart"},
		"no order of lite topics":     {"LiteOrder"},
		"only add lite topics":        {"LiteSet"},
		"keep lite topics":            {"LiteUnsubscribe"},
		"forget positions":            {"LiteUnsubscribe"},
		"lose the lite topic":         {"LiteDeadLetter"},
		"ignore starts":               {"LiteStart"},
		"take every name":             {"LiteNames"},
		"lite topics everywhere":      {"LiteNeedsItsTopic"},
		"return the end of ServeLite": {"LiteServeEnds"},

		"hide the lost connection":    {"NotConnected"},
		"never wait for a connection": {"NotConnected"},

		"return no results":         {"RetryResult"},
		"announce no capabilities":  {"Capabilities"},
		"forget the settings":       {"ProducerSettings", "ConsumerSettings", "FIFOSettings"},
		"settle with a dead ctx":    {"DeadContext"},
		"open settings after Close": {"ClosedForGood"},
		"give one at a time":        {"ReceiveMax", "FIFOAttemptID"},
	} {
		t.Run(fault, func(t *testing.T) { finds(t, "TestSuiteInVirtualTime", fault, names) })
	}
}

// The suite finds faults of a server without any guarantee too.
func TestSuiteOfAPlainServerFindsFaults(t *testing.T) {
	if os.Getenv(faultVariable) != "" {
		return
	}
	for fault, names := range map[string][]string{
		"filter by hash":          {"TagFilterIsExact"},
		"no order":                {"FIFOInFlightGroupWaits"},
		"old handles acknowledge": {"AckMany"},
		"retry early":             {"RetryOutlivesTheLease"},
		"retry does not count":    {"AttemptsExhausted"},
		"ignore MaxBytes":         {"ReceiveMaxBytes"},
		"open after Close":        {"ClosedForGood"},
	} {
		t.Run(fault, func(t *testing.T) { finds(t, "TestSuiteOfAPlainServer", fault, names) })
	}
}

// finds runs cases of a suite in a process with a fault, and fails unless each of them does.
func finds(t *testing.T, suite, fault string, names []string) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0],
		"-test.run=^"+suite+"$/^("+strings.Join(names, "|")+")$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), faultVariable+"="+fault)
	out, err := cmd.CombinedOutput()
	for _, name := range names {
		assert.That(t, err != nil && strings.Contains(string(out), "FAIL: "+suite+"/"+name+" "),
			"the case %s did not find it: %v\n%s", name, err, out)
	}
}

// AllGuarantees leaves no promise out.
func TestAllGuarantees(t *testing.T) {
	for f, v := range reflect.ValueOf(AllGuarantees()).Fields() {
		assert.That(t, f.Type.Kind() != reflect.Bool || f.Name == "Virtual" || v.Bool() != strings.HasPrefix(f.Name, "Lacks"),
			"AllGuarantees returns %v for %s", v, f.Name)
	}
}
