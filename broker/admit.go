package broker

import "github.com/tidegate/tidegate/broker/internal/consume"

// admit returns an error if the receive may not keep so many bytes of bodies.
func (p *Poll) admit(bytes int64) error {
	if p.Admit == nil {
		return nil
	}
	return p.Admit(bytes)
}

// grantedBytes returns the size of the bodies of grants.
func grantedBytes(grants []consume.Grant) (n int64) {
	for i := range grants {
		n += grants[i].Lease.Size
	}
	return n
}
