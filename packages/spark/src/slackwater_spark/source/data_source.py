"""The data source behind ``format("slackwater")``."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

FORMAT = "slackwater"


class SlackwaterSource(DataSource):
    """Changes of database tables in whole transactions, each with its true commit LSN.

    Reads what a sidecar has declared complete. For the options see
    :class:`slackwater_spark.source.options.SourceOptions`, for the columns
    :data:`slackwater_spark.source.rows.ROW_SCHEMA`. Options are checked when the frame is made.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """The columns; refuses options that cannot be used."""
        from slackwater_engine.payloads import PACKED_SCHEMA
        from slackwater_spark.source.options import SourceOptions
        from slackwater_spark.source.rows import ROW_SCHEMA, typed_row_schema

        options = SourceOptions.parse(self.options)
        if options.typing is not None:
            return typed_row_schema(options.typing)
        return ROW_SCHEMA if options.packing is None else PACKED_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        from slackwater_spark.source.options import SourceOptions
        from slackwater_spark.source.readers import SlackwaterStreamReader

        return SlackwaterStreamReader(SourceOptions.parse(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``: everything up to the newest cut."""
        from slackwater_spark.source.options import SourceOptions
        from slackwater_spark.source.readers import SlackwaterBatchReader

        return SlackwaterBatchReader(SourceOptions.parse(self.options), schema)
