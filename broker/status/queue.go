package status

import "time"

// A Queue is the contents of one queue of a topic.
type Queue struct {
	Queue    int       `json:"queue"`
	Begin    int64     `json:"begin"`           // offset of the first message that groups can receive
	End      int64     `json:"end"`             // offset after the last message
	Messages int64     `json:"messages"`        // stored messages from Begin on; removed ones leave gaps
	Oldest   time.Time `json:"oldest,omitzero"` // when the first of them was stored
	Newest   time.Time `json:"newest,omitzero"` // when the last of them was stored
}

// A QueuePage is one page of the queues of a topic, by number.
type QueuePage struct {
	Queues []Queue `json:"queues"`
	Next   string  `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A GroupQueue is the progress of a group in one queue of a topic.
type GroupQueue struct {
	Queue       int       `json:"queue"`
	Begin       int64     `json:"begin"`           // as in Queue
	End         int64     `json:"end"`             // as in Queue
	Cursor      int64     `json:"cursor"`          // next offset to be delivered for the first time
	Undelivered int64     `json:"undelivered"`     // offsets from Cursor to End
	Unfinished  int64     `json:"unfinished"`      // messages before Cursor that are not finished
	Oldest      time.Time `json:"oldest,omitzero"` // when the first message from Cursor on was stored
}

// A GroupQueuePage is one page of the progress of a group in a topic, by queue number.
type GroupQueuePage struct {
	Queues []GroupQueue `json:"queues"`
	Next   string       `json:"next,omitempty"` // After of the next page; empty on the last page
}
