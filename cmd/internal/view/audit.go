package view

import (
	"cmp"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// AuditColumns are the columns of audit.
var AuditColumns = []output.Column[status.AuditRecord]{
	{Name: "TIME", Cell: func(r status.AuditRecord) any { return r.Time }},
	{Name: "KEY", Cell: func(r status.AuditRecord) any { return cmp.Or(r.Key, "-") }},
	{Name: "ADDRESS", Cell: func(r status.AuditRecord) any { return r.Peer }},
	{Name: "OPERATION", Cell: func(r status.AuditRecord) any { return r.Operation }},
	{Name: "SUBJECT", Cell: func(r status.AuditRecord) any { return r.Subject }},
	{Name: "QUERY", Wide: true, Least: 24, Cell: func(r status.AuditRecord) any { return r.Query }},
	{Name: "RESULT", Least: 24, Cell: func(r status.AuditRecord) any { return r.Result }},
}
