package producer

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/ledger"
)

// entryOf returns the ledger's record of an item.
func entryOf(it *item) *ledger.Entry[*item] { return &it.entry }

// call calls the function that SendAsync was given for an item.
func (p *Producer) call(it *item) {
	defer p.recovered("the function given to SendAsync panicked", it.Message.ID)
	if it.err != nil {
		it.done(tidegate.Receipt{}, it.err)
		return
	}
	it.done(it.receipt, nil)
}
