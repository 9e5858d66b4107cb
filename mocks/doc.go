// Package mocks has mocks of the transport interfaces, for tests that check the calls: their
// number, their arguments and their order. If a test needs a working transport, use
// transporttest.Fake or package broker/brokertest instead.
//
//	m := mocks.NewMockTransport(gomock.NewController(t))
//	m.EXPECT().Send(gomock.Any(), gomock.Len(1)).Return([]transport.SendResult{{Err: err}}).Times(3)
//	m.EXPECT().ProducerSettings(gomock.Any(), "orders").AnyTimes() // requested after a failure
//	p, err := producer.New(m, producer.Options{})
//
// TestShop in example_test.go is the whole unit test of a program.
//
// The mocks are typed: an expectation with a wrong argument of Return or
// DoAndReturn does not compile. They are generated; see the go:generate line.
package mocks

//go:generate go tool mockgen -typed -write_package_comment=false -package mocks -destination mocks.go github.com/tidegate/tidegate/transport Sender,Receiver,Settler,Configurer,Transport
