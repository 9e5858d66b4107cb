package simulation

import "flag"

var allFaults = flag.Bool("simulation.known", false, "include the situations whose faults are known and not cured yet")

// A knownFault is a situation in which the SDK breaks a promise and that waits for its cure. Its
// plans are changed so that the situation does not occur. The last line of the test counts them.
type knownFault struct {
	name   string
	change func(p *plan) (changed bool)
}

var knownFaults = []knownFault{}

// withoutKnownFaults changes the plan and returns the names of the faults that it avoids.
func (p *plan) withoutKnownFaults() (avoided []string) {
	if *allFaults {
		return nil
	}
	for _, k := range knownFaults {
		if k.change(p) {
			avoided = append(avoided, k.name)
		}
	}
	return avoided
}
