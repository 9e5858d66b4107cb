// Package bench measures the rate and the latency of operations: as fast as callers can (a closed
// loop), or at a constant rate, each latency from the time at which the operation was due (an open
// loop). A run of the open loop that could not keep its rate is not valid, and has no figures that
// one could quote.
package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// LoadOptions are the messages of a load.
type LoadOptions struct {
	Topic  string
	Group  string // the consumer group, of receives and of a verification
	Limit  int    // operations at the same time, at most
	Groups int    // message groups; 0 means none
	Bodies Bodies
	Log    io.Writer // errors of a consumer

	Async  bool // send with SendAsync
	Batch  int  // messages of an operation, at least 1
	Verify bool // receive the sent messages after the last round

	Messages int // received in a round, at most

	unread bool // the load does not receive its messages
}

func (o *LoadOptions) message(number int64) *tidegate.Message {
	m := &tidegate.Message{Topic: o.Topic}
	if o.unread {
		m.Body = o.Bodies.Plain(number)
	} else {
		m.Body = o.Bodies.Body(number)
	}
	if o.Groups > 0 {
		m.MessageGroup = fmt.Sprintf("g%d", number%int64(o.Groups))
	}
	return m
}

// A sequence sends messages with numbers. Messages of message groups get their numbers in the order
// in which the producer gets the messages.
type sequence struct {
	next atomic.Int64
	mu   sync.Mutex // orders the begins
}

// take returns the first of n numbers.
func (s *sequence) take(n int) int64 { return s.next.Add(int64(n)) - int64(n) }

// begin begins the send of the next message. done is called at its end, unless begin fails.
func (s *sequence) begin(ctx context.Context, p *producer.Producer, o *LoadOptions, done func(number int64, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := s.take(1)
	return p.SendAsync(ctx, o.message(number), func(_ tidegate.Receipt, err error) { done(number, err) })
}

// send sends the next message and returns its number.
func (s *sequence) send(ctx context.Context, p *producer.Producer, o *LoadOptions) (int64, error) {
	if o.Groups == 0 {
		number := s.take(1)
		_, err := p.Send(ctx, o.message(number))
		return number, err
	}
	type result struct {
		number int64
		err    error
	}
	ended := make(chan result, 1)
	if err := s.begin(ctx, p, o, func(number int64, err error) { ended <- result{number, err} }); err != nil {
		return 0, err
	}
	r := <-ended
	return r.number, r.err
}

// push starts a push consumer. The function ends it and returns its error.
func (o *LoadOptions) push(ctx context.Context, t Transport, handle consumer.Handler) (end func() error, err error) {
	c, err := consumer.NewPush(t, consumer.Subscription{Group: o.Group, Topic: o.Topic}, handle, consumer.PushOptions{
		Concurrency: 64, Logger: slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	return func() error {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil // the ordered end
	}, nil
}

// A Transport is a connection of producers and consumers.
type Transport interface {
	producer.Transport
	consumer.Transport
}

// A Load makes the operations that a benchmark measures.
type Load interface {
	// Prepare gets ready for a round. Its time is not measured.
	Prepare(ctx context.Context) error

	// Operation is one measured operation.
	Operation(ctx context.Context, done func(Outcome))

	// Truth waits for the last messages and returns the lost ones; nil if the load does not verify.
	Truth(ctx context.Context) (*Truth, error)

	// Close ends the load.
	Close() error
}

// patience is the longest wait for the last deliveries.
const patience = 10 * time.Second

// complete waits until each accepted message was delivered, or until nothing has been delivered
// for some time.
func complete(ctx context.Context, v *Verifier) Truth {
	last, since := int64(-1), time.Now()
	for !v.Complete() && time.Since(since) < patience && ctx.Err() == nil {
		if n := v.Truth().Delivered; n != last {
			last, since = n, time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return v.Truth()
}

// cause groups failed sends: the name of the code, or the reason of the end.
func cause(err error) string {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return e.Code.String()
	}
	if e, ok := errors.AsType[*producer.SendError](err); ok {
		return e.Reason.String()
	}
	return err.Error()
}

// outcome is the end of an operation of one message.
func outcome(err error) Outcome {
	if err != nil {
		return Outcome{Failures: []string{cause(err)}}
	}
	return Outcome{Messages: 1}
}

// Arrivals is the distribution of the due times of an open loop.
type Arrivals string

// The distributions.
const (
	Even    Arrivals = "even"    // at equal intervals
	Poisson Arrivals = "poisson" // at random, as independent users come
)

// A schedule returns the due times of an open loop, as durations from its start.
type schedule struct {
	rate     float64 // operations a second
	arrivals Arrivals
	random   *rand.Rand

	n    int64
	last float64 // seconds
}

func newSchedule(rate float64, a Arrivals, seed uint64) *schedule {
	return &schedule{rate: rate, arrivals: a, random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // a repeatable load needs no secret
}

// next returns the due time of the next operation. It never decreases.
func (s *schedule) next() time.Duration {
	if s.arrivals == Poisson {
		s.last += -math.Log(1-s.random.Float64()) / s.rate
	} else {
		s.last = float64(s.n) / s.rate
	}
	s.n++
	return time.Duration(s.last * float64(time.Second))
}

// Validate returns an error if there is no such distribution.
func (a Arrivals) Validate() error {
	if a != Even && a != Poisson {
		return fmt.Errorf("the arrivals are %q; they are %s or %s", a, Even, Poisson)
	}
	return nil
}

// The range of the histograms: 1 µs to 10 minutes with three significant digits.
const (
	lowest  = int64(time.Microsecond)
	highest = int64(10 * time.Minute)
	digits  = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(lowest, highest, digits) }

func add(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), lowest), highest)) // the value is in range
}

// A recorder collects the results of one run. Several goroutines may use it. It has several parts,
// so that the callers do not wait for each other: a caller that the kernel stops inside a part
// would stop all of them.
type recorder struct {
	started time.Time
	open    bool // the loop
	parts   []part
	late    *hdrhistogram.Histogram // of the generator, after the due time; one goroutine uses it

	mu      sync.Mutex
	seconds []*hdrhistogram.Histogram // nil for a second without operations
}

// maxParts bounds the parts, of which each has histograms of 170 KiB.
const maxParts = 16

// A part has the operations of some callers.
type part struct {
	mu sync.Mutex
	figures
	second int                     // of series
	series *hdrhistogram.Histogram // what was due in the latest second
}

// Figures are those of operations.
type figures struct {
	response *hdrhistogram.Histogram // from the due time; in a closed loop the service
	service  *hdrhistogram.Histogram // from the begin
	done     int64                   // messages
	failed   map[string]int64
	ended    time.Time // of the last operation
}

// newRecorder returns a recorder of a run, whose begin has to be set.
func newRecorder(callers int, open bool) *recorder {
	r := &recorder{open: open, parts: make([]part, min(callers, maxParts)), late: newHistogram()}
	for i := range r.parts {
		p := &r.parts[i]
		p.service, p.series, p.failed = newHistogram(), newSeries(), map[string]int64{}
		if p.response = p.service; open {
			p.response = newHistogram()
		}
	}
	return r
}

func newSeries() *hdrhistogram.Histogram { return hdrhistogram.New(lowest, highest, 2) }

// record adds one operation of a caller. Due is the begin in a closed loop.
func (r *recorder) record(caller int, due, begun, ended time.Time, out Outcome) {
	p := &r.parts[caller%len(r.parts)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended.After(p.ended) && (out.Messages > 0 || len(out.Failures) > 0) {
		p.ended = ended
	}
	for _, cause := range out.Failures {
		p.failed[cause]++
	}
	if out.Messages == 0 {
		return
	}
	p.done += out.Messages
	add(p.service, ended.Sub(begun))
	if r.open {
		add(p.response, ended.Sub(due))
	}
	switch second := int(due.Sub(r.started) / time.Second); {
	case second < p.second: // it ended after a later one
		r.mu.Lock()
		defer r.mu.Unlock()
		add(r.at(second), ended.Sub(due))
		return
	case second > p.second:
		r.merge(p.second, p.series)
		p.series.Reset()
		p.second = second
	}
	add(p.series, ended.Sub(due))
}

// merge adds operations to a second.
func (r *recorder) merge(second int, h *hdrhistogram.Histogram) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.TotalCount() > 0 {
		r.at(second).Merge(h)
	}
}

// at returns the histogram of a second. The caller holds mu.
func (r *recorder) at(second int) *hdrhistogram.Histogram {
	for len(r.seconds) <= second {
		r.seconds = append(r.seconds, nil)
	}
	if r.seconds[second] == nil {
		r.seconds[second] = newSeries()
	}
	return r.seconds[second]
}

// sum returns all parts together.
func (r *recorder) sum() figures {
	all := figures{response: newHistogram(), service: newHistogram(), failed: map[string]int64{}}
	for i := range r.parts {
		p := &r.parts[i]
		p.mu.Lock()
		all.response.Merge(p.response)
		all.service.Merge(p.service)
		r.merge(p.second, p.series)
		p.series.Reset()
		all.done += p.done
		for cause, n := range p.failed {
			all.failed[cause] += n
		}
		if p.ended.After(all.ended) {
			all.ended = p.ended
		}
		p.mu.Unlock()
	}
	return all
}

// leastBody is the smallest body: it has the number of the message, the number of the run, and a
// checksum of the body.
const leastBody = 16

// Bodies makes the bodies of messages. The zero value is not ready.
type Bodies struct {
	least, most int64
	plain       []byte // the longest body, without a number
	Run         uint32 // distinguishes the messages of this run from others
}

// ParseBodies reads a size (1KiB), an interval of sizes (uniform:100-4096), or the name of a file
// whose content is the body (file:PATH).
func ParseBodies(text string) (Bodies, error) {
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		content, err := os.ReadFile(path)
		if err == nil && len(content) < leastBody {
			err = fmt.Errorf("the file has %d bytes", len(content))
		}
		if err != nil {
			return Bodies{}, fmt.Errorf("--size %s: %w; a body has at least %d bytes", text, err, leastBody)
		}
		return Bodies{least: int64(len(content)), most: int64(len(content)), plain: content}, nil
	}
	var b Bodies
	least, most := text, text
	if interval, ok := strings.CutPrefix(text, "uniform:"); ok {
		if least, most, ok = strings.Cut(interval, "-"); !ok {
			return Bodies{}, fmt.Errorf("--size is %s; an interval is uniform:MIN-MAX, for example uniform:100-4096", text)
		}
	}
	var err error
	if b.least, err = bytesOf(least); err == nil {
		b.most, err = bytesOf(most)
	}
	switch {
	case err != nil:
		return Bodies{}, fmt.Errorf("--size is %s: %w", text, err)
	case b.least < leastBody || b.most < b.least:
		return Bodies{}, fmt.Errorf("--size is %s; a body has at least %d bytes, and MAX is not below MIN", text, leastBody)
	}
	b.plain = bytes.Repeat([]byte("abcdefghijklmnopqrstuvwxyz"), int(b.most/26)+1)
	return b, nil
}

func bytesOf(text string) (int64, error) {
	digits, err := declare.Digits("bytes", text)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(digits, 10, 32)
}

// Body returns the body of a message, which begins with its number. The same number has the same
// body each time.
func (b Bodies) Body(number int64) []byte {
	body := bytes.Clone(b.Plain(number))
	binary.BigEndian.PutUint64(body, uint64(number)) //nolint:gosec // numbers are not negative
	binary.BigEndian.PutUint32(body[8:], b.Run)
	binary.BigEndian.PutUint32(body[12:], checksum(body))
	return body
}

// Plain returns a body of the size of Body without a number. All messages share its memory, so the
// caller must not change it. It costs no allocation.
func (b Bodies) Plain(number int64) []byte {
	n := b.least
	if b.most > b.least {
		n += rand.New(rand.NewPCG(uint64(number), 0)).Int64N(b.most - b.least + 1) //nolint:gosec // a repeatable load needs no secret
	}
	return b.plain[:n:n]
}

// checksum is that of a body without the place of the checksum.
func checksum(body []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(body[:12]), crc32.IEEETable, body[16:])
}

// Number returns the number of a body; false if the body is not of this run, or damaged.
func (b Bodies) Number(body []byte) (int64, bool) {
	if len(body) < leastBody || binary.BigEndian.Uint32(body[8:]) != b.Run || binary.BigEndian.Uint32(body[12:]) != checksum(body) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(body)), true //nolint:gosec // as Body wrote it
}

// A sending measures sends.
type sending struct {
	LoadOptions
	transport Transport
	p         *producer.Producer
	sequence  sequence
	verifier  *Verifier // nil without Verify
}

// Sends returns a load of sends.
func Sends(_ context.Context, t Transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Limit*o.Batch, 1)})
	if err != nil {
		return nil, err
	}
	l := &sending{LoadOptions: o, transport: t, p: p}
	if l.unread = !o.Verify; o.Verify {
		l.verifier = NewVerifier()
	}
	return l, nil
}

func (l *sending) Close() error { return l.p.Close() }

func (l *sending) Prepare(context.Context) error { return nil }

func (l *sending) Operation(ctx context.Context, done func(Outcome)) {
	switch {
	case l.Batch > 1:
		done(l.batch(ctx, l.sequence.take(l.Batch)))
	case l.Async:
		ended := func(number int64, err error) { done(l.ended(number, err)) }
		if err := l.sequence.begin(ctx, l.p, &l.LoadOptions, ended); err != nil {
			done(outcome(err))
		}
	default:
		number, err := l.sequence.send(ctx, l.p, &l.LoadOptions)
		done(l.ended(number, err))
	}
}

func (l *sending) ended(number int64, err error) Outcome {
	if err == nil && l.verifier != nil {
		l.verifier.Accept(number)
	}
	return outcome(err)
}

// batch sends messages together.
func (l *sending) batch(ctx context.Context, first int64) (sum Outcome) {
	messages := make([]*tidegate.Message, l.Batch)
	for i := range messages {
		messages[i] = l.message(first + int64(i))
	}
	for i, r := range l.p.SendBatch(ctx, messages) {
		out := l.ended(first+int64(i), r.Err)
		sum.Messages += out.Messages
		sum.Failures = append(sum.Failures, out.Failures...)
	}
	return sum
}

func (l *sending) Truth(ctx context.Context) (*Truth, error) {
	if l.verifier == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	end, err := l.push(ctx, l.transport, func(_ context.Context, d *tidegate.Delivery) error {
		if number, ok := l.Bodies.Number(d.Body); ok {
			l.verifier.Deliver(number, d.MessageGroup)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	truth := complete(ctx, l.verifier)
	return &truth, end()
}

// A receiving measures receives with their acknowledgements.
type receiving struct {
	LoadOptions
	transport Transport
	p         *producer.Producer
	s         *consumer.Simple
	verifier  *Verifier
	number    int64
}

// Receives returns a load of receives with acknowledgements, of messages that it sends before each
// round.
func Receives(_ context.Context, t Transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return nil, err
	}
	s, err := consumer.NewSimple(t, consumer.Subscription{Group: o.Group, Topic: o.Topic}, consumer.SimpleOptions{InvisibleDuration: time.Minute, LongPolling: time.Second})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &receiving{LoadOptions: o, transport: t, p: p, s: s, verifier: NewVerifier()}, nil
}

func (l *receiving) Close() error { return l.p.Close() }

// Prepare sends the messages of a round.
func (l *receiving) Prepare(ctx context.Context) error {
	var mu sync.Mutex
	var first error
	ended := func(number int64) func(tidegate.Receipt, error) {
		return func(_ tidegate.Receipt, err error) {
			if err == nil {
				l.verifier.Accept(number)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			first = cmp.Or(first, err)
		}
	}
	for range l.Messages {
		if err := l.p.SendAsync(ctx, l.message(l.number), ended(l.number)); err != nil {
			return err
		}
		l.number++
	}
	if err := l.p.Flush(ctx); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	return first
}

func (l *receiving) Operation(ctx context.Context, done func(Outcome)) {
	ds, err := l.s.Receive(ctx, l.Batch)
	if err != nil {
		done(outcome(err))
		return
	}
	var out Outcome
	if len(ds) > 0 {
		for i, err := range l.transport.Ack(ctx, ds) {
			if err != nil {
				out.Failures = append(out.Failures, cause(err))
				continue
			}
			out.Messages++
			if number, ok := l.Bodies.Number(ds[i].Body); ok {
				l.verifier.Deliver(number, ds[i].MessageGroup)
			}
		}
	}
	out.Last = l.verifier.Complete()
	done(out)
}

// Truth receives the remaining messages of the last round.
func (l *receiving) Truth(ctx context.Context) (*Truth, error) {
	for since := time.Now(); !l.verifier.Complete() && time.Since(since) < patience && ctx.Err() == nil; {
		l.Operation(ctx, func(out Outcome) {
			if out.Messages > 0 {
				since = time.Now()
			}
		})
	}
	truth := l.verifier.Truth()
	return &truth, nil
}

// An endToEnd measures messages from their send to their handler. Its consumer runs in the same
// process, so one clock measures both ends.
type endToEnd struct {
	LoadOptions
	p        *producer.Producer
	sequence sequence
	verifier *Verifier
	end      func() error // of the consumer

	mu      sync.Mutex
	waiting map[int64]chan struct{} // by number, closed by the delivery
	last    time.Time               // of the deliveries
}

// EndToEnd returns a load of messages from their send to the begin of their handler, for a consumer
// group without other consumers.
func EndToEnd(ctx context.Context, t Transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Limit, 1)})
	if err != nil {
		return nil, err
	}
	l := &endToEnd{LoadOptions: o, p: p, verifier: NewVerifier(), waiting: map[int64]chan struct{}{}}
	if l.end, err = o.push(ctx, t, l.handle); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return l, nil
}

func (l *endToEnd) Close() error { return errors.Join(l.end(), l.p.Close()) }

func (l *endToEnd) Prepare(context.Context) error { return nil }

func (l *endToEnd) Operation(ctx context.Context, done func(Outcome)) {
	number, err := l.sequence.send(ctx, l.p, &l.LoadOptions)
	if err != nil {
		done(outcome(err))
		return
	}
	l.verifier.Accept(number)
	done(l.await(ctx, number))
}

// await waits for the delivery of a message. It gives the message up when no message at all was
// delivered for some time: a slow consumer is not a loss.
func (l *endToEnd) await(ctx context.Context, number int64) Outcome {
	arrived, since := l.arrival(number), time.Now()
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for {
		select {
		case <-arrived:
			return Outcome{Messages: 1}
		case <-ctx.Done():
			return Outcome{Failures: []string{"not delivered"}}
		case <-quiet.C:
			if left := l.patience(since); left > 0 {
				quiet.Reset(left)
				continue
			}
			return Outcome{Failures: []string{fmt.Sprintf("not delivered within %v after the last delivery", patience)}}
		}
	}
}

// patience returns for how long to wait for a message that was sent at a time.
func (l *endToEnd) patience(sent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.After(sent) {
		sent = l.last
	}
	return patience - time.Since(sent)
}

// arrival returns the channel of a message, which its delivery closes: before the receipt of the
// send, or after it. The second caller removes it.
func (l *endToEnd) arrival(number int64) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	arrived, ok := l.waiting[number]
	if ok {
		delete(l.waiting, number)
		return arrived
	}
	arrived = make(chan struct{})
	l.waiting[number] = arrived
	return arrived
}

func (l *endToEnd) handle(_ context.Context, d *tidegate.Delivery) error {
	number, ok := l.Bodies.Number(d.Body)
	if !ok {
		return nil // not of this run
	}
	if !l.verifier.Deliver(number, d.MessageGroup) {
		return nil
	}
	l.mu.Lock()
	l.last = time.Now()
	l.mu.Unlock()
	close(l.arrival(number))
	return nil
}

func (l *endToEnd) Truth(ctx context.Context) (*Truth, error) {
	truth := complete(ctx, l.verifier)
	return &truth, nil
}

// A Verifier checks that each accepted message is delivered, once and in the order of its message
// group. Several goroutines may use it.
type Verifier struct {
	mu        sync.Mutex
	accepted  numbers
	delivered numbers
	both      int64 // accepted and delivered
	twice     int64
	disorder  int64
	last      map[string]int64 // by message group
}

// NewVerifier returns a Verifier of an empty run.
func NewVerifier() *Verifier { return &Verifier{last: map[string]int64{}} }

// numbers is a set of numbers from 0 on, with a bit for each.
type numbers struct {
	bits  []uint64
	count int64
}

// add adds a number. It reports whether the number was new.
func (s *numbers) add(n int64) bool {
	word, bit := int(n/64), uint64(1)<<(n%64)
	for len(s.bits) <= word {
		s.bits = append(s.bits, make([]uint64, word-len(s.bits)+1)...)
	}
	if s.bits[word]&bit != 0 {
		return false
	}
	s.bits[word] |= bit
	s.count++
	return true
}

func (s *numbers) has(n int64) bool {
	return int(n/64) < len(s.bits) && s.bits[n/64]&(1<<(n%64)) != 0
}

// Accept notes that the message with a number of the run was accepted.
func (v *Verifier) Accept(number int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.accepted.add(number) && v.delivered.has(number) {
		v.both++
	}
}

// Deliver checks a delivery of the message with a number of the run, and reports whether it is the
// first of that message. Messages without a group have no order.
func (v *Verifier) Deliver(number int64, group string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.delivered.add(number) {
		v.twice++
		return false
	}
	if v.accepted.has(number) {
		v.both++
	}
	if group != "" {
		if last, ok := v.last[group]; ok && number < last {
			v.disorder++
		}
		v.last[group] = max(v.last[group], number)
	}
	return true
}

// A Truth is the result of a verification.
type Truth struct {
	Accepted   int64 `json:"accepted"`
	Delivered  int64 `json:"delivered"` // different messages, also those whose acceptance was not reported
	Lost       int64 `json:"lost"`      // accepted and not delivered
	Twice      int64 `json:"twice"`
	OutOfOrder int64 `json:"out_of_order"`
}

// Complete reports whether each accepted message was delivered.
func (v *Verifier) Complete() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.both == v.accepted.count
}

// Truth returns the counts.
func (v *Verifier) Truth() Truth {
	v.mu.Lock()
	defer v.mu.Unlock()
	return Truth{v.accepted.count, v.delivered.count, v.accepted.count - v.both, v.twice, v.disorder}
}
