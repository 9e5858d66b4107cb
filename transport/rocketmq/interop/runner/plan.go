package runner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Versions are the versions of RocketMQ that are complete in Maven Central and that the tests know.
// The first one is the default.
var Versions = []string{"5.2.0", "5.3.3", "5.4.0", "5.5.0"}

// maxMembers bounds the brokers and the proxies of a set-up.
const maxMembers = 8

// The ports of a set-up lie in a block of blockPorts ports within firstPort to lastPort, which is
// below the ports that systems give to clients.
const (
	firstPort  = 20_000
	lastPort   = 31_999
	blockPorts = 1 + 4*maxMembers
)

// Options describe a set-up. The zero value is RocketMQ 5.2.0 with one broker and one proxy in one
// process.
type Options struct {
	// Port is the gRPC port of the first proxy, and identifies the set-up. The other proxies have
	// the ports that follow it. Default: 8081.
	Port int

	// Version is one of Versions. Default: 5.2.0.
	Version string

	// Brokers is the number of brokers, 1 to 8, with the names broker-a, broker-b and so on. Each
	// one is a master without replicas. Default: 1.
	Brokers int

	// Proxies is the number of proxies, 1 to 8, with the names proxy-1, proxy-2 and so on.
	// Default: 1.
	Proxies int

	// Cluster runs each broker and each proxy in a process of its own, as in production. False
	// means that the broker runs within the process of proxy-1, which starts faster. Several
	// brokers or proxies set it.
	Cluster bool

	// Throttle makes brokers that write one message at a time, wait for the disk with each, and let
	// 8 more wait. They respond to further sends with TOO_MANY_REQUESTS. It sets Cluster, because
	// a proxy within the process of the broker does not use that queue.
	Throttle bool

	// Broker and Proxy are settings for broker.conf and rmq-proxy.json. They override those of the
	// runner.
	Broker, Proxy map[string]string

	// Heap is the largest Java heap of each broker and each proxy, as for Java's option -Xmx.
	// Default: 512m.
	Heap string
}

var heapSize = regexp.MustCompile(`^[1-9]\d*[kmgKMG]$`)

// withDefaults returns o with its defaults, or an error that names all faults.
func (o Options) withDefaults() (Options, error) {
	o.Port, o.Version, o.Heap = cmp.Or(o.Port, 8081), cmp.Or(o.Version, Versions[0]), cmp.Or(o.Heap, "512m")
	o.Brokers, o.Proxies = cmp.Or(o.Brokers, 1), cmp.Or(o.Proxies, 1)
	o.Cluster = o.Cluster || o.Throttle || o.Brokers > 1 || o.Proxies > 1
	var faults []string
	if !slices.Contains(Versions, o.Version) {
		faults = append(faults, fmt.Sprintf("version %q is not one of %s", o.Version, strings.Join(Versions, ", ")))
	}
	if o.Brokers < 1 || o.Brokers > maxMembers {
		faults = append(faults, fmt.Sprintf("the number of brokers is %d, not 1 to %d", o.Brokers, maxMembers))
	}
	if o.Proxies < 1 || o.Proxies > maxMembers {
		faults = append(faults, fmt.Sprintf("the number of proxies is %d, not 1 to %d", o.Proxies, maxMembers))
	}
	if o.Port < 1 || o.Port+o.Proxies-1 > 65535 || o.Port+o.Proxies > firstPort && o.Port <= lastPort {
		faults = append(faults, fmt.Sprintf("the gRPC ports begin at %d: they must be valid and outside of %d to %d, where the runner has other ports", o.Port, firstPort, lastPort))
	}
	if !heapSize.MatchString(o.Heap) {
		faults = append(faults, fmt.Sprintf("heap %q is not a size as 512m", o.Heap))
	}
	faults = append(faults, settingFaults(o.Broker)...)
	faults = append(faults, settingFaults(o.Proxy)...)
	if faults != nil {
		return o, fmt.Errorf("rocketmq: %s", strings.Join(faults, "; "))
	}
	return o, nil
}

var settingKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.]*$`)

func settingFaults(settings map[string]string) (faults []string) {
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		if !settingKey.MatchString(k) || strings.ContainsAny(settings[k], "\r\n") {
			faults = append(faults, fmt.Sprintf("setting %q=%q is not a name and a value of one line", k, settings[k]))
		}
	}
	return faults
}

// ports are the ports of a set-up besides those of gRPC.
type ports struct {
	NameServer int
	Brokers    []int // each also uses the port 2 below it, and the replication port 1 below it
	Proxies    []int // for RocketMQ's remoting protocol
}

// portsAt returns the ports of a set-up within the block at base.
func (o Options) portsAt(base int) ports {
	p := ports{NameServer: base}
	for i := range o.Brokers {
		p.Brokers = append(p.Brokers, base+3+3*i)
	}
	for i := range o.Proxies {
		p.Proxies = append(p.Proxies, base+1+3*o.Brokers+i)
	}
	return p
}

// pickPorts returns ports that are not taken. Set-ups whose Port is near to each other begin at
// different blocks, so that two of them can start at once.
func (o Options) pickPorts(taken func(port int) bool) (ports, error) {
	const blocks = (lastPort - firstPort + 1) / blockPorts
	need := 1 + 3*o.Brokers + o.Proxies
	for i := range blocks {
		base := firstPort + (o.Port+i)%blocks*blockPorts
		free := true
		for port := base; port < base+need && free; port++ {
			free = !taken(port)
		}
		if free {
			return o.portsAt(base), nil
		}
	}
	return ports{}, fmt.Errorf("rocketmq: there are no %d free ports in a row within %d to %d", need, firstPort, lastPort)
}

// A process is one Java process of a set-up. A process serves if the name server lists its brokers
// and its ports respond.
type process struct {
	name  string
	class string
	heap  string
	args  []string
	files map[string]string // configuration, by path below the directory of the set-up

	listens int   // a port that accepts connections; 0 for none
	grpc    int   // a port that speaks HTTP/2; 0 for none
	brokers []int // ports of brokers that the name server lists
}

// nameServer is the name of the process of the name server.
const nameServer = "namesrv"

func brokerName(i int) string { return "broker-" + string(rune('a'+i)) }
func proxyName(i int) string  { return "proxy-" + strconv.Itoa(i+1) }

// plan returns the processes of a set-up in the order of their start.
func (o Options) plan(dir string, p ports) []process {
	const broker, proxy = "org.apache.rocketmq.broker.BrokerStartup", "org.apache.rocketmq.proxy.ProxyStartup"
	list := []process{{
		name: nameServer, class: "org.apache.rocketmq.namesrv.NamesrvStartup", heap: "256m", args: []string{"-c", "conf/namesrv.conf"},
		files:   map[string]string{"conf/namesrv.conf": fmt.Sprintf("listenPort=%d\nbindAddress=127.0.0.1\n", p.NameServer)},
		listens: p.NameServer,
	}}
	for i := range o.Brokers {
		name := brokerName(i)
		conf := "conf/" + name + ".conf"
		list = append(list, process{
			name: name, class: broker, heap: o.Heap, args: []string{"-c", conf},
			files:   map[string]string{conf: o.brokerConf(dir, i, p)},
			brokers: []int{p.Brokers[i]},
		})
	}
	for i := range o.Proxies {
		name := proxyName(i)
		conf := "conf/" + name + ".json"
		list = append(list, process{
			name: name, class: proxy, heap: o.Heap, args: []string{"-pm", "cluster", "-pc", conf},
			files: map[string]string{conf: o.proxyConf(i, p)},
			grpc:  o.Port + i,
		})
	}
	if !o.Cluster { // the broker runs within the proxy
		b, x := list[1], list[2]
		x.args = []string{"-pm", "local", "-pc", x.args[3], "-bc", b.args[1]}
		maps.Copy(x.files, b.files)
		x.brokers = b.brokers
		list = []process{list[0], x}
	}
	return list
}

func (o Options) brokerConf(dir string, i int, p ports) string {
	all := map[string]string{
		"brokerClusterName": "DefaultCluster", "brokerName": brokerName(i), "brokerId": "0",
		"namesrvAddr": local(p.NameServer), "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "bindAddress": "127.0.0.1",
		"listenPort": strconv.Itoa(p.Brokers[i]), "haListenPort": strconv.Itoa(p.Brokers[i] - 1),
		"storePathRootDir": filepath.Join(dir, "store", brokerName(i)), "mappedFileSizeCommitLog": "67108864",
		"autoCreateTopicEnable": "false", "enablePropertyFilter": "true",
	}
	if o.Throttle {
		maps.Copy(all, map[string]string{
			"flushDiskType": "SYNC_FLUSH", "asyncSendEnable": "false",
			"sendMessageThreadPoolNums": "1", "sendThreadPoolQueueCapacity": "8", "waitTimeMillsInSendQueue": "2000",
		})
	}
	maps.Copy(all, o.Broker)
	return properties(all)
}

func (o Options) proxyConf(i int, p ports) string {
	all := map[string]any{
		"rocketMQClusterName": "DefaultCluster", "namesrvAddr": local(p.NameServer),
		"grpcServerPort": o.Port + i, "remotingListenPort": p.Proxies[i], "grpcShutdownTimeSeconds": 2,
	}
	if o.Brokers > 1 {
		// A send with a message group leaves a dead broker when the proxy reads the route, by default every 20 s.
		all["topicRouteServiceCacheRefreshSeconds"] = 2
	}
	for k, v := range o.Proxy {
		all[k] = v // RocketMQ converts text to the type of the setting
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // it has only texts and numbers
	}
	return string(b) + "\n"
}

// properties returns a file of Java's properties, in which a backslash precedes another one.
func properties(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(m[k], `\`, `\\`))
	}
	return b.String()
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
