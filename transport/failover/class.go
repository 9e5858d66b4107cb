package failover

import "github.com/tidegate/tidegate"

// A reaction has the steps that depend on the class of an endpoint's error only. The reaction to
// the result of a send is verdict.
type reaction struct {
	responds    bool // the endpoint works; of a probe
	knownQueues bool // its last known queues are still valid
	askOthers   bool // the settings of another endpoint may replace its own
	endsAlone   bool // transaction checks of the other endpoints continue without it
}

func reactionTo(err error) reaction {
	switch tidegate.Classify(err) {
	case tidegate.ClassOK:
		return reaction{responds: true}
	case tidegate.ClassThrottled:
		return reaction{responds: true, knownQueues: true}
	case tidegate.ClassTransient:
		return reaction{knownQueues: true, askOthers: true}
	case tidegate.ClassPermanent:
		return reaction{endsAlone: true}
	case tidegate.ClassCancelled:
		return reaction{}
	}
	return reaction{}
}
