"""One asyncio process that makes all model calls, and the only importer of the model SDK.

provider    the SDK: one call, streamed, its reply or the one reason why there is none
database    a few threads whose connections survive an outage
claims      the database side of a call: taking it and parking what cannot be called now
outcomes    the database side of its end: closing it by what came of it
process     the loop: claims, streams, leases, cuts, settlements, the sweep
"""
